#include "common/backend/cpu/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/available_memory.h"
#include "common/base/error.h"

namespace baton::backend {
namespace {

constexpr size_t kOsPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

absl::Status NotEnough(size_t size_bytes, absl::string_view why) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
      absl::StrCat("cannot allocate ", size_bytes, " bytes (", size_bytes >> 20, " MiB): ", why));
}

}  // namespace

absl::StatusOr<MappedMemory> MappedMemory::Map(size_t size_bytes) {
  return Map(size_bytes, /*file=*/-1);
}

absl::StatusOr<MappedMemory> MappedMemory::MapShared(size_t size_bytes) {
  const int file = memfd_create("baton-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return NotEnough(size_bytes, std::strerror(errno));
  absl::StatusOr<MappedMemory> memory = Map(size_bytes, file);
  if (!memory.ok()) {
    close(file);
    return memory;
  }
  // After the mapping that writes.
  if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) !=
      0) {
    return NotEnough(size_bytes, absl::StrCat("sealing a memory file: ", std::strerror(errno)));
  }
  return memory;
}

absl::StatusOr<MappedMemory> MappedMemory::Map(size_t size_bytes, int file) {
  // Small buffers are not worth the question: it reads three or four files.
  if (size_bytes >= kHugePage) {
    const size_t available = AvailableMemory();
    if (size_bytes > available) {
      return NotEnough(size_bytes, absl::StrCat("only ", available >> 20, " MiB are available"));
    }
  }
  const bool huge = size_bytes >= kHugePage;
  const size_t size = (std::max<size_t>(size_bytes, 1) + kOsPage - 1) / kOsPage * kOsPage;
  const size_t slack = huge ? kHugePage : 0;
  if (file >= 0 && ftruncate(file, static_cast<off_t>(size)) != 0) {
    return NotEnough(size_bytes, std::strerror(errno));
  }
  void* mapped =
      mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return NotEnough(size_bytes, std::strerror(errno));
  char* begin = static_cast<char*>(mapped);
  if (huge) {
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    if (before > 0) munmap(begin, before);
    if (slack > before) munmap(begin + before + size, slack - before);
    begin += before;
  }
  if (file >= 0 &&
      mmap(begin, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    const std::string error = std::strerror(errno);
    munmap(begin, size);
    return NotEnough(size_bytes, error);
  }
  if (huge) madvise(begin, size, MADV_HUGEPAGE);  // only speed is lost where the kernel refuses
  return MappedMemory(begin, size, file);
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  if (file_ >= 0) close(file_);
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      file_(std::exchange(other.file_, -1)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(file_, other.file_);
  return *this;
}

}  // namespace baton::backend
