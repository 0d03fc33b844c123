#include "tests/testing/http_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>

namespace baton::testing {

constexpr char kHeadEnd[] = "\r\n\r\n";

std::string HttpReply::Header(const std::string& name) const {
  const std::string line = "\r\n" + name + ": ";
  const size_t begin = head.find(line);
  if (begin == std::string::npos) return "";
  const size_t value = begin + line.size();
  return head.substr(value, head.find("\r\n", value) - value);
}

HttpClient::HttpClient(const std::string& address, int receive_buffer_bytes) {
  const size_t colon = address.rfind(':');
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  if (getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return;
  }
  fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience = {60, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (receive_buffer_bytes > 0) {  // must come before the window is announced
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  if (connect(fd_, found->ai_addr, found->ai_addrlen) != 0) Close();
  freeaddrinfo(found);
}

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void HttpClient::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

void HttpClient::FinishSending() { shutdown(fd_, SHUT_WR); }

void HttpClient::Get(const std::string& path, const std::string& headers) {
  Send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n");
}

void HttpClient::Post(const std::string& path, const std::string& body,
                      const std::string& headers) {
  Send("POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
       std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body);
}

bool HttpClient::More() {
  char bytes[4096];
  const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
  if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
  return n > 0;
}

std::string HttpClient::Take(size_t bytes) {
  while (buffer_.size() < bytes && More()) {
  }
  const std::string taken = buffer_.substr(0, bytes);
  buffer_.erase(0, taken.size());
  return taken;
}

bool HttpClient::WasReset(absl::Duration wait) const {
  pollfd events = {fd_, 0, 0};
  return poll(&events, 1, static_cast<int>(absl::ToInt64Milliseconds(wait))) > 0 &&
         (events.revents & POLLERR) != 0;
}

std::string HttpClient::ReadUntil(const std::string& text) {
  size_t at;
  while ((at = buffer_.find(text)) == std::string::npos && More()) {
  }
  return Take(at == std::string::npos ? buffer_.size() : at + text.size());
}

HttpReply HttpClient::Read() {
  HttpReply reply;
  reply.head = ReadUntil(kHeadEnd);
  if (reply.head.size() < sizeof(kHeadEnd)) return reply;
  const int status = std::atoi(reply.head.c_str() + reply.head.find(' '));
  if (reply.Header("Transfer-Encoding") == "chunked") {
    for (size_t size = 1; size > 0;) {
      size = std::strtoul(ReadUntil("\r\n").c_str(), nullptr, 16);
      reply.body += Take(size);
      if (Take(2) != "\r\n") return reply;
    }
  } else if (const std::string length = reply.Header("Content-Length"); !length.empty()) {
    const size_t size = std::strtoul(length.c_str(), nullptr, 10);
    reply.body = Take(size);
    if (reply.body.size() < size) return reply;
  } else {
    while (More()) {
    }
    reply.body = Take(buffer_.size());
  }
  reply.status = status;
  return reply;
}

bool HttpClient::AtEnd() { return buffer_.empty() && !More(); }

std::string HttpGet(const std::string& address, const std::string& path) {
  HttpClient client(address);
  if (!client.connected()) return "";
  client.Get(path, "Connection: close\r\n");
  const HttpReply reply = client.Read();
  return reply.head + reply.body;
}

}  // namespace baton::testing
