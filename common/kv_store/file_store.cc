#include "common/kv_store/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::kv_store {
namespace {

constexpr absl::string_view kSuffix = ".kv", kUnfinished = ".unfinished";
constexpr size_t kKeySize = 16 + 1 + 16 + 1 + 8 + 1 + 16;  // of SegmentKey::ToString()
constexpr absl::Duration kLongestWrite = absl::Hours(1);
constexpr size_t kPiece = size_t{1} << 20;  // read or written without a look at the deadline

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  const int fd_;
};

absl::Status Late(absl::string_view what) {
  return absl::DeadlineExceededError(absl::StrCat("no time left to ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(const std::string& directory,
                                                           int64_t max_bytes, const Clock& clock) {
  std::unique_ptr<FileStore> store(new FileStore(directory, max_bytes, clock));
  BATON_RETURN_IF_ERROR(store->Scan());
  return store;
}

absl::Status FileStore::Scan() {
  namespace fs = std::filesystem;
  const auto failed = [this](const std::error_code& error, absl::string_view what) {
    return MakeError(absl::StatusCode::kInvalidArgument, "KV_STORE",
                     absl::StrCat("the KV tier's directory ", directory_.string(), " cannot be ",
                                  what, ": ", error.message()));
  };
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return failed(error, "made");
  if (access(directory_.c_str(), R_OK | W_OK | X_OK) != 0) {
    return failed(std::error_code(errno, std::generic_category()), "read and written to");
  }
  std::vector<std::tuple<int64_t, std::string, int64_t>> found;  // time, name, bytes
  fs::recursive_directory_iterator entry(directory_, fs::directory_options::skip_permission_denied,
                                         error);
  if (error) return failed(error, "read");
  const int64_t oldest = absl::ToUnixSeconds(clock_.Now() - kLongestWrite);
  for (; entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (error) return failed(error, "read");
    if (entry.depth() > 1) {
      entry.disable_recursion_pending();
      continue;
    }
    const std::string name = entry->path().filename();
    struct stat facts;
    if (lstat(entry->path().c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) continue;
    if (entry.depth() == 1 && absl::EndsWith(name, kUnfinished) &&
        ParseSegmentKey(name.substr(0, kKeySize)) && facts.st_mtim.tv_sec < oldest) {
      unlink(entry->path().c_str());
    }
    absl::string_view key = name;
    if (!absl::ConsumeSuffix(&key, kSuffix) || !ParseSegmentKey(key) ||
        PathOf(key) != entry->path()) {
      continue;  // not ours
    }
    found.emplace_back(facts.st_mtim.tv_sec * int64_t{1'000'000'000} + facts.st_mtim.tv_nsec,
                       std::string(key), facts.st_size);
  }
  std::sort(found.begin(), found.end());
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [time, name, bytes] : found) index_.Put(name, bytes);
  }
  MakeRoom(0);
  return absl::OkStatus();
}

std::filesystem::path FileStore::PathOf(absl::string_view name) const {
  // By the first digits of the prefix key, which are spread evenly.
  return directory_ / std::string(name.substr(43, 2)) / absl::StrCat(name, kSuffix);
}

absl::Status FileStore::ErrorOf(int error, absl::string_view what,
                                const std::filesystem::path& path) {
  const std::string message = absl::StrCat(what, " ", path.string(), ": ", std::strerror(error));
  if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
    return pause_.Failed(MakeError(absl::StatusCode::kResourceExhausted, "KV_STORE_FULL", message));
  }
  return pause_.Failed(MakeError(absl::StatusCode::kUnavailable, "KV_STORE", message));
}

void FileStore::Forget(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  index_.Remove(name);
}

StoreUsage FileStore::usage() const {
  absl::MutexLock lock(&mutex_);
  return {index_.bytes(), index_.size(), evicted_};
}

void FileStore::Listen(KeyListener listener) {
  absl::MutexLock lock(&mutex_);
  index_.Listen(std::move(listener));
}

absl::StatusOr<int> FileStore::CountLeading(absl::Span<const SegmentKey> keys, absl::Time) {
  // What cannot be read now had better be computed.
  if (!pause_.Check().ok()) return 0;
  absl::MutexLock lock(&mutex_);
  return index_.CountLeading(keys);
}

absl::StatusOr<int> FileStore::CountToLast(absl::Span<const SegmentKey> keys, absl::Time) {
  if (!pause_.Check().ok()) return 0;
  absl::MutexLock lock(&mutex_);
  return index_.CountToLast(keys);
}

absl::StatusOr<SegmentBytes> FileStore::Get(const SegmentKey& key, size_t max_bytes,
                                            absl::Time deadline) {
  BATON_RETURN_IF_ERROR(pause_.Check());
  const std::string name = key.ToString();
  {
    absl::MutexLock lock(&mutex_);
    if (!index_.Touch(name)) return absl::NotFoundError(name);
  }
  const std::filesystem::path path = PathOf(name);
  // O_NONBLOCK: a pipe that took the file's place would have its reader wait.
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.open()) {
    const int error = errno;
    Forget(name);
    if (error == ENOENT) return absl::NotFoundError(name);
    return ErrorOf(error, "cannot open", path);
  }
  struct stat facts;
  if (fstat(file.fd(), &facts) != 0) return ErrorOf(errno, "cannot look at", path);
  if (!S_ISREG(facts.st_mode) || facts.st_size <= 0 ||
      static_cast<uint64_t>(facts.st_size) > max_bytes) {
    return MakeError(
        absl::StatusCode::kDataLoss, "KV_STORE_VALUE",
        absl::StrCat(path.string(), " has ", facts.st_size, " bytes, expected ", max_bytes));
  }
  auto value = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(facts.st_size));
  for (size_t at = 0; at < value->size();) {
    if (clock_.Now() >= deadline) return Late(absl::StrCat("read ", path.string()));
    const ssize_t size = read(file.fd(), value->data() + at, std::min(kPiece, value->size() - at));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrorOf(errno, "cannot read", path);
    if (size == 0) {
      return MakeError(absl::StatusCode::kDataLoss, "KV_STORE_VALUE",
                       absl::StrCat(path.string(), " has become shorter"));
    }
    at += static_cast<size_t>(size);
  }
  futimens(file.fd(), nullptr);  // now, for the order after a restart
  pause_.Succeeded();
  return value;
}

void FileStore::MakeRoom(int64_t bytes) {
  while (true) {
    std::string last;
    {
      absl::MutexLock lock(&mutex_);
      if (index_.bytes() + bytes <= max_bytes_) return;
      last = index_.Last().value();
      index_.Remove(last);
      ++evicted_;
    }
    unlink(PathOf(last).c_str());  // another process may have done it
  }
}

absl::Status FileStore::Put(const SegmentKey& key, const SegmentBytes& value, absl::Time deadline) {
  BATON_RETURN_IF_ERROR(pause_.Check());
  const auto bytes = static_cast<int64_t>(value->size());
  if (bytes > max_bytes_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_STORE_FULL",
                     absl::StrCat("a segment has ", bytes, " bytes, the file tier ", max_bytes_));
  }
  if (clock_.Now() >= deadline) return Late("write a segment");
  const std::string name = key.ToString();
  Forget(name);
  MakeRoom(bytes);
  const std::filesystem::path path = PathOf(name);
  BATON_RETURN_IF_ERROR(WriteFile(path, *value, deadline));
  pause_.Succeeded();
  {
    absl::MutexLock lock(&mutex_);
    index_.Put(name, bytes);
  }
  MakeRoom(0);  // others may have written meanwhile
  return absl::OkStatus();
}

absl::Status FileStore::WriteFile(const std::filesystem::path& path,
                                  const std::vector<std::byte>& value, absl::Time deadline) {
  const std::string folder = path.parent_path();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrorOf(errno, "cannot make", folder);
  }
  const std::filesystem::path unfinished =
      path.parent_path() /
      absl::StrCat(path.stem().string(), ".", process_, ".", ++written_, kUnfinished);
  const int fd = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return ErrorOf(errno, "cannot make", unfinished);
  int error = 0;
  bool late = false;
  for (size_t at = 0; at < value.size() && error == 0;) {
    late = clock_.Now() >= deadline;
    if (late) break;
    const ssize_t size = write(fd, value.data() + at, std::min(kPiece, value.size() - at));
    if (size < 0) {
      if (errno != EINTR) error = errno;
    } else {
      at += static_cast<size_t>(size);
    }
  }
  if (close(fd) != 0 && error == 0) error = errno;  // some file systems say it only now
  if (!late && error == 0 && rename(unfinished.c_str(), path.c_str()) != 0) error = errno;
  if (!late && error == 0) return absl::OkStatus();
  unlink(unfinished.c_str());
  if (late) return Late(absl::StrCat("write ", path.string()));
  return ErrorOf(error, "cannot write", path);
}

void FileStore::Remove(const SegmentKey& key, absl::Time) {
  const std::string name = key.ToString();
  Forget(name);
  unlink(PathOf(name).c_str());
}

}  // namespace baton::kv_store
