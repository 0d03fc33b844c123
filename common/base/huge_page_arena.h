// Memory of a large table that is read all over. Each look-up misses the caches, and with pages of
// 4 KiB the TLB, too: it waits for a walk through the page tables, in a virtual machine those of
// the guest and of the host. A huge page of 2 MiB spares most of these walks.
#ifndef BATON_COMMON_BASE_HUGE_PAGE_ARENA_H_
#define BATON_COMMON_BASE_HUGE_PAGE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <set>
#include <utility>
#include <vector>

namespace baton {

// Hands out blocks of some hundred bytes to some megabytes, which may come and go: neighbours that
// are free are joined. The memory comes in chunks, each as large as all before it up to a bound,
// and goes back to the system with the arena only. From 2 MiB on, a chunk asks for huge pages;
// where the system has none, it has plain ones. Unsynchronized.
class HugePageArena {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kAlignment = 64;  // of blocks

  HugePageArena() = default;
  ~HugePageArena();
  HugePageArena(const HugePageArena&) = delete;
  HugePageArena& operator=(const HugePageArena&) = delete;

  // The memory is not initialized. REQUIRES: more than 0 bytes. Throws as operator new does.
  void* Allocate(size_t bytes);
  // `bytes`: as it was allocated.
  void Free(void* block, size_t bytes);

  // Bytes of the chunks. The system has not provided yet what no block has used.
  size_t chunk_bytes() const { return chunk_bytes_; }

 private:
  struct Chunk {
    char* begin;
    std::align_val_t alignment;
  };

  void AddChunk(size_t least_bytes);
  void AddHole(char* begin, size_t bytes);
  void TakeHole(char* begin, size_t bytes);

  std::vector<Chunk> chunks_;
  size_t chunk_bytes_ = 0;
  std::map<char*, size_t> holes_;
  std::set<std::pair<size_t, char*>> by_size_;  // the same
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_HUGE_PAGE_ARENA_H_
