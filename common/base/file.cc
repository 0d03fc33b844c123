#include "common/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

struct OpenFile {
  int descriptor = -1;
  size_t size_bytes = 0;
};

// O_NONBLOCK: opening a named pipe must fail the regular-file test, not wait for a writer.
absl::StatusOr<OpenFile> OpenRegular(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  struct stat info;
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(descriptor);
    return absl::InvalidArgumentError(absl::StrCat(path, ": found no regular file, expected one"));
  }
  return OpenFile{descriptor, static_cast<size_t>(info.st_size)};
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  BATON_ASSIGN_OR_RETURN(const OpenFile file, OpenRegular(path));
  const auto close_file = absl::MakeCleanup([&] { close(file.descriptor); });
  if (file.size_bytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", file.size_bytes, " bytes, expected at most ", max_bytes));
  }
  std::string content(file.size_bytes, '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = read(file.descriptor, &content[done], content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": found ", done, " readable bytes, expected ", file.size_bytes));
    }
    done += static_cast<size_t>(count);
  }
  return content;
}

bool FileExists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const OpenFile file, OpenRegular(path));
  const void* data = nullptr;
  if (file.size_bytes > 0) {
    data = mmap(nullptr, file.size_bytes, PROT_READ, MAP_SHARED, file.descriptor, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      close(file.descriptor);
      return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot map"));
    }
  }
  return std::unique_ptr<MappedFile>(new MappedFile(path, file.descriptor, data, file.size_bytes));
}

MappedFile::MappedFile(std::string path, int descriptor, const void* data, size_t size_bytes)
    : path_(std::move(path)), descriptor_(descriptor), data_(data), size_bytes_(size_bytes) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<void*>(data_), size_bytes_);
  close(descriptor_);
}

absl::Status MappedFile::CheckUnchanged() const {
  struct stat info;
  if (fstat(descriptor_, &info) == 0 && static_cast<size_t>(info.st_size) == size_bytes_) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": found another size than the ", size_bytes_,
                   " bytes at its opening, expected a file that no one changes"));
}

}  // namespace baton
