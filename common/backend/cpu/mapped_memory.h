// Memory straight from the kernel: zeroed, on huge pages where it is large.
#ifndef BATON_COMMON_BACKEND_CPU_MAPPED_MEMORY_H_
#define BATON_COMMON_BACKEND_CPU_MAPPED_MEMORY_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace baton::backend {

// Move-only; unmapped with the object.
class MappedMemory {
 public:
  // RESOURCE_EXHAUSTED, naming the size, if the machine or the container has less left. The kernel
  // assigns pages when they are first touched: without this check, the out-of-memory killer would
  // end the process later.
  static absl::StatusOr<MappedMemory> Map(size_t size_bytes);
  // The same in a memory file, which a process that gets file() can map, but neither write nor
  // resize.
  static absl::StatusOr<MappedMemory> MapShared(size_t size_bytes);

  MappedMemory() = default;
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;

  void* data() const { return data_; }  // page-aligned; from 2 MiB on, 2 MiB-aligned
  size_t size_bytes() const { return size_bytes_; }
  int file() const { return file_; }  // -1: none

 private:
  static absl::StatusOr<MappedMemory> Map(size_t size_bytes, int file);
  MappedMemory(void* data, size_t size_bytes, int file)
      : data_(data), size_bytes_(size_bytes), file_(file) {}

  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  int file_ = -1;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_MAPPED_MEMORY_H_
