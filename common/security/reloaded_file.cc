#include "common/security/reloaded_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::security {

absl::StatusOr<std::optional<std::string>> ReloadedFile::Look() {
  const absl::Duration now = clock_.SinceStart();
  const bool first = !last_look_;
  if (!first && now - *last_look_ < kPeriod) return std::nullopt;
  last_look_ = now;
  const auto bad = [this](absl::string_view what) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason_, absl::StrCat(path_, ": ", what));
  };
  // A pipe without a writer would otherwise block here for ever.
  const int file = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (file < 0) {
    const int error = errno;
    if (!first && !stamp_) return std::nullopt;  // reported before
    stamp_.reset();
    return bad(std::strerror(error));
  }
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat status = {};
  if (fstat(file, &status) != 0) return bad(std::strerror(errno));
  const Stamp stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                    status.st_mtim.tv_nsec, status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
  if (stamp_ == stamp) return std::nullopt;
  stamp_ = stamp;
  if (!S_ISREG(status.st_mode)) return bad("a regular file expected");
  std::string content;
  char part[16 << 10];
  while (content.size() <= max_bytes_) {
    const ssize_t count = read(file, part, sizeof(part));
    if (count == 0) return content;
    if (count > 0) {
      content.append(part, static_cast<size_t>(count));
    } else if (errno != EINTR) {
      return bad(std::strerror(errno));
    }
  }
  return bad(absl::StrCat("longer than ", max_bytes_, " bytes"));
}

}  // namespace baton::security
