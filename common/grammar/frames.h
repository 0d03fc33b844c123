// Messages between a worker and its grammar process, over a stream socket: a length of four bytes,
// then as many bytes. Numbers are little-endian. Both ends run on one machine and are one version.
#ifndef BATON_COMMON_GRAMMAR_FRAMES_H_
#define BATON_COMMON_GRAMMAR_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace baton::grammar {

// The largest message: a compiled grammar of 64 MiB and its heading.
inline constexpr size_t kMaxFrameBytes = (size_t{64} << 20) + 1024;

class FrameWriter {
 public:
  FrameWriter& Number(uint64_t value);
  FrameWriter& Text(absl::string_view text);
  FrameWriter& Ids(absl::Span<const int32_t> ids);
  FrameWriter& Words(absl::Span<const uint32_t> words);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// After a read beyond the end, all reads return nothing and ok() is false.
class FrameReader {
 public:
  explicit FrameReader(absl::string_view bytes) : rest_(bytes) {}
  uint64_t Number();
  absl::string_view Text();  // points into the frame
  std::vector<int32_t> Ids();
  std::vector<uint32_t> Words();
  bool ok() const { return ok_; }

 private:
  absl::string_view Take(size_t count);
  absl::string_view rest_;
  bool ok_ = true;
};

// Blocking, by the monotonic clock. DEADLINE_EXCEEDED after `limit`, UNAVAILABLE if the peer is
// gone, INTERNAL for a length beyond kMaxFrameBytes.
absl::Status SendFrame(int socket, absl::string_view bytes, absl::Duration limit);
absl::StatusOr<std::string> ReceiveFrame(int socket, absl::Duration limit);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_FRAMES_H_
