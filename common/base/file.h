// Files, read whole or mapped.
#ifndef BATON_COMMON_BASE_FILE_H_
#define BATON_COMMON_BASE_FILE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

// NOT_FOUND; INVALID_ARGUMENT if it is no regular file or has more than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

bool FileExists(const std::string& path);

// A regular file, mapped read-only for the object's life. Truncating a mapped file ends the process
// that reads it (SIGBUS): replace a model directory by renaming a new one into its place.
// CheckUnchanged detects most changes before a read fails.
class MappedFile {
 public:
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::string_view bytes() const {
    return absl::string_view(static_cast<const char*>(data_), size_bytes_);
  }
  const std::string& path() const { return path_; }
  // INVALID_ARGUMENT if the file's size is no longer that of the map.
  absl::Status CheckUnchanged() const;

 private:
  MappedFile(std::string path, int descriptor, const void* data, size_t size_bytes);

  const std::string path_;
  const int descriptor_;
  const void* const data_;  // null for an empty file
  const size_t size_bytes_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_FILE_H_
