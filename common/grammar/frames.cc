#include "common/grammar/frames.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::grammar {
namespace {

using SteadyClock = std::chrono::steady_clock;

SteadyClock::time_point DeadlineAfter(absl::Duration limit) {
  if (limit == absl::InfiniteDuration()) return SteadyClock::time_point::max();
  return SteadyClock::now() + absl::ToChronoNanoseconds(limit);
}

// Waits until the socket is ready for `events`.
absl::Status Await(int socket, short events, SteadyClock::time_point deadline) {
  for (;;) {
    int timeout_ms = -1;
    if (deadline != SteadyClock::time_point::max()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
    }
    pollfd wait = {socket, events, 0};
    const int ready = poll(&wait, 1, timeout_ms);
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError("the grammar process does not answer");
    if (errno != EINTR) return absl::UnavailableError(absl::StrCat("poll: ", strerror(errno)));
  }
}

absl::Status Transfer(int socket, char* bytes, size_t count, bool send_it,
                      SteadyClock::time_point deadline) {
  for (size_t done = 0; done < count;) {
    const ssize_t moved =
        send_it ? send(socket, bytes + done, count - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                : recv(socket, bytes + done, count - done, MSG_DONTWAIT);
    if (moved > 0) {
      done += static_cast<size_t>(moved);
    } else if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      BATON_RETURN_IF_ERROR(Await(socket, send_it ? POLLOUT : POLLIN, deadline));
    } else if (moved == 0 || errno != EINTR) {
      return absl::UnavailableError("the grammar process has ended");
    }
  }
  return absl::OkStatus();
}

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

void Append(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

FrameWriter& FrameWriter::Number(uint64_t value) {
  Append(value, 8, &bytes_);
  return *this;
}

FrameWriter& FrameWriter::Text(absl::string_view text) {
  Number(text.size());
  bytes_.append(text.data(), text.size());
  return *this;
}

FrameWriter& FrameWriter::Ids(absl::Span<const int32_t> ids) {
  Number(ids.size());
  for (const int32_t id : ids) Append(static_cast<uint32_t>(id), 4, &bytes_);
  return *this;
}

FrameWriter& FrameWriter::Words(absl::Span<const uint32_t> words) {
  Number(words.size());
  for (const uint32_t word : words) Append(word, 4, &bytes_);
  return *this;
}

absl::string_view FrameReader::Take(size_t count) {
  if (!ok_ || count > rest_.size()) {
    ok_ = false;
    return {};
  }
  const absl::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

uint64_t FrameReader::Number() { return LittleEndian(Take(8)); }

absl::string_view FrameReader::Text() { return Take(Number()); }

std::vector<uint32_t> FrameReader::Words() {
  const uint64_t count = Number();
  if (count > kMaxFrameBytes) ok_ = false;
  const absl::string_view bytes = Take(count * 4);
  std::vector<uint32_t> words(bytes.size() / 4);
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<uint32_t>(LittleEndian(bytes.substr(i * 4, 4)));
  }
  return words;
}

std::vector<int32_t> FrameReader::Ids() {
  const std::vector<uint32_t> words = Words();
  return {words.begin(), words.end()};
}

absl::Status SendFrame(int socket, absl::string_view bytes, absl::Duration limit) {
  if (bytes.size() > kMaxFrameBytes) {
    return absl::InternalError(
        absl::StrCat("a frame of ", bytes.size(), " bytes, at most ", kMaxFrameBytes, " expected"));
  }
  const SteadyClock::time_point deadline = DeadlineAfter(limit);
  std::string frame;
  frame.reserve(bytes.size() + 4);
  Append(bytes.size(), 4, &frame);
  frame.append(bytes.data(), bytes.size());
  return Transfer(socket, frame.data(), frame.size(), /*send_it=*/true, deadline);
}

absl::StatusOr<std::string> ReceiveFrame(int socket, absl::Duration limit) {
  const SteadyClock::time_point deadline = DeadlineAfter(limit);
  char heading[4];
  BATON_RETURN_IF_ERROR(Transfer(socket, heading, 4, /*send_it=*/false, deadline));
  const uint64_t size = LittleEndian(absl::string_view(heading, 4));
  if (size > kMaxFrameBytes) {
    return absl::InternalError(
        absl::StrCat("a frame of ", size, " bytes, at most ", kMaxFrameBytes, " expected"));
  }
  std::string bytes(size, '\0');
  BATON_RETURN_IF_ERROR(Transfer(socket, bytes.data(), bytes.size(), /*send_it=*/false, deadline));
  return bytes;
}

}  // namespace baton::grammar
