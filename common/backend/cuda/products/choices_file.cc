#include "common/backend/cuda/products/choices_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/random_id.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

absl::Status Failed(const std::string& path, const char* call, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", call, ": ", std::strerror(error)));
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }
  // False, with errno, if the system could not keep what was written.
  bool Close() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

bool WriteAll(int descriptor, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

absl::Status WriteNew(const std::string& path, absl::string_view bytes) {
  File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.descriptor() < 0) return Failed(path, "open", errno);
  if (!WriteAll(file.descriptor(), bytes)) return Failed(path, "write", errno);
  if (!file.Close()) return Failed(path, "close", errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DeviceChoices>> ReadChoices(const std::string& path) {
  // Not blocking: a pipe has no writer to wait for.
  const File file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.descriptor() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::vector<DeviceChoices>();
    return Failed(path, "open", errno);
  }
  struct stat found = {};
  if (fstat(file.descriptor(), &found) != 0) return Failed(path, "fstat", errno);
  if (!S_ISREG(found.st_mode) || found.st_size > static_cast<off_t>(kMaxChoicesBytes)) {
    return absl::DataLossError(
        absl::StrCat(path, ": expected a file of at most ", kMaxChoicesBytes, " bytes"));
  }
  // A byte more, to see that it has not grown.
  std::string bytes(static_cast<size_t>(found.st_size) + 1, '\0');
  size_t count = 0;
  while (count < bytes.size()) {
    const ssize_t got = read(file.descriptor(), bytes.data() + count, bytes.size() - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed(path, "read", errno);
    if (got == 0) break;
    count += static_cast<size_t>(got);
  }
  auto devices = DecodeChoices(absl::string_view(bytes).substr(0, count));
  if (!devices.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": ", devices.status().message()));
  }
  return devices;
}

absl::Status WriteChoices(const std::string& path, absl::Span<const DeviceChoices> devices) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return Failed(folder.string(), "create", error.value());
  const std::string temporary = absl::StrCat(path, ".", RandomIdText());
  absl::Status written = WriteNew(temporary, EncodeChoices(devices));
  if (written.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    written = Failed(path, "rename", errno);
  }
  if (!written.ok()) unlink(temporary.c_str());
  return written;
}

}  // namespace baton::backend::cuda
