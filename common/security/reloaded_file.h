// A small file that is read again when it changes.
#ifndef BATON_COMMON_SECURITY_RELOADED_FILE_H_
#define BATON_COMMON_SECURITY_RELOADED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::security {

// Unsynchronized: the owner locks.
class ReloadedFile {
 public:
  // Between two looks at the file.
  static constexpr absl::Duration kPeriod = absl::Seconds(1);

  // `reason` is that of all errors. `clock` must outlive it.
  ReloadedFile(std::string path, size_t max_bytes, absl::string_view reason, const Clock& clock)
      : path_(std::move(path)), max_bytes_(max_bytes), reason_(reason), clock_(clock) {}

  const std::string& path() const { return path_; }

  // The content, if the file's device, inode, size or times are others than at the last look. Looks
  // at most once a period; the first call always looks. INVALID_ARGUMENT, once for each change,
  // if the file cannot be read, is no regular file or is longer than `max_bytes`.
  absl::StatusOr<std::optional<std::string>> Look();

 private:
  // Device, inode, size, and the times of the last change of content and of status.
  using Stamp = std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

  const std::string path_;
  const size_t max_bytes_;
  const std::string reason_;
  const Clock& clock_;
  std::optional<absl::Duration> last_look_;
  std::optional<Stamp> stamp_;  // of what Look() returned last; none: it could not be opened
};

}  // namespace baton::security

#endif  // BATON_COMMON_SECURITY_RELOADED_FILE_H_
