// A blocking HTTP client for tests, which may also send what is no HTTP, or leave at any time.
#ifndef BATON_TESTS_TESTING_HTTP_CLIENT_H_
#define BATON_TESTS_TESTING_HTTP_CLIENT_H_

#include <string>

#include "absl/time/time.h"

namespace baton::testing {

struct HttpReply {
  int status = 0;    // 0: the connection ended before a whole answer
  std::string head;  // all header lines
  std::string body;  // of a chunked answer, without the chunks' frames
  // The value of a header, by its exact name; empty if there is none.
  std::string Header(const std::string& name) const;
};

// One connection. Reads give up after a minute.
class HttpClient {
 public:
  // `address`: host:port. `receive_buffer_bytes`: size of the socket's buffer; 0: the kernel's
  // default.
  explicit HttpClient(const std::string& address, int receive_buffer_bytes = 0);
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  void Send(const std::string& bytes);
  // Nothing more will be sent; answers can still be read.
  void FinishSending();
  // `headers`: whole lines, each with "\r\n".
  void Get(const std::string& path, const std::string& headers = "");
  void Post(const std::string& path, const std::string& body, const std::string& headers = "");
  // The next answer, whole.
  HttpReply Read();
  // Everything up to and including `text`; less if the connection ends first.
  std::string ReadUntil(const std::string& text);
  // The next bytes; fewer if the connection ends first.
  std::string Take(size_t bytes);
  // Waits for the end of the connection. False if something else comes.
  bool AtEnd();
  // Reads nothing. True once the server has reset the connection, which it may do within `wait`.
  bool WasReset(absl::Duration wait) const;
  void Close();

 private:
  bool More();  // reads into buffer_; false at the end

  int fd_ = -1;
  std::string buffer_;
};

// The whole answer, headers included; empty if `address` (host:port) does not answer.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_HTTP_CLIENT_H_
