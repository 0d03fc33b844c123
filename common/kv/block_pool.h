// Hands out KV blocks as ref-counted leases. Knows ids only: no tokens, requests or device memory.
//
//   free ── Acquire ──▶ referenced by one lease ── Share ──▶ by several ── last Release ──▶ free
//
// Thread: a pool and all its leases belong to one scheduler loop; unsynchronized.
#ifndef BATON_COMMON_KV_BLOCK_POOL_H_
#define BATON_COMMON_KV_BLOCK_POOL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::kv {

using BlockId = int32_t;

// Why a reference is held. A block with references of several uses counts under the first of them
// in this order.
enum class BlockUse {
  kActive,  // a sequence or a prefill is reading or writing it
  kHeld,    // kept for a sequence that is not running now, e.g. by a transfer
  kCached,  // the prefix cache keeps it for later prompts
};
absl::string_view BlockUseName(BlockUse use);  // "active", "held", "cached"

struct BlockCounts {
  int total = 0;
  int free = 0;
  int active = 0;
  int cached = 0;
  int held = 0;
};

class BlockPool;

// An ordered list of references to blocks, all of one use; the destructor gives them back.
// A lease that holds nothing belongs to no pool.
class BlockLease {
 public:
  BlockLease() = default;
  ~BlockLease() { Release(); }
  BlockLease(BlockLease&& other) noexcept { TakeFrom(other); }
  BlockLease& operator=(BlockLease&& other) noexcept;
  BlockLease(const BlockLease&) = delete;
  BlockLease& operator=(const BlockLease&) = delete;

  const std::vector<BlockId>& ids() const { return ids_; }
  int size() const { return static_cast<int>(ids_.size()); }
  bool empty() const { return ids_.empty(); }
  BlockUse use() const { return use_; }

  // Returns new references to the blocks at [begin, end). REQUIRES: 0 <= begin <= end <= size().
  BlockLease Share(int begin, int end, BlockUse use) const;

  // Puts tail's blocks after this lease's own; `tail` is empty afterwards. An empty lease takes
  // over the tail's pool and use. REQUIRES otherwise, unless the tail is empty: same pool, same
  // use.
  void Append(BlockLease&& tail);

  // Keeps [0, index) and returns the rest. REQUIRES: 0 <= index <= size().
  BlockLease SplitAt(int index);

  void SetUse(BlockUse use);

  // Gives all references back now.
  void Release();

 private:
  friend class BlockPool;
  BlockLease(BlockPool* pool, BlockUse use, std::vector<BlockId> ids);

  void TakeFrom(BlockLease& other) noexcept;
  void Join(BlockPool* pool);  // enters the pool's list of leases
  void Leave();

  // pool_ is set, and the lease is in the pool's list, exactly while ids_ is not empty.
  BlockPool* pool_ = nullptr;
  BlockUse use_ = BlockUse::kActive;
  std::vector<BlockId> ids_;
  BlockLease* previous_ = nullptr;
  BlockLease* next_ = nullptr;
};

// Must outlive its leases (checked).
class BlockPool {
 public:
  // REQUIRES: block_count >= 0.
  explicit BlockPool(int block_count);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // RESOURCE_EXHAUSTED with reason KV_BLOCKS_EXHAUSTED, taking nothing, if fewer than `count` are
  // free. REQUIRES: count >= 0.
  //
  // The block freed last is handed out first: it is the likeliest to be in the CPU's caches and
  // TLB, and blocks never used stay untouched memory. The order depends on the calls only.
  absl::StatusOr<BlockLease> Acquire(int count, BlockUse use);

  const BlockCounts& counts() const { return counts_; }
  int RefCount(BlockId id) const;

  // Called each time a block's references grow from one to two (shared = true) and shrink from two
  // to one (false). One listener, the prefix cache: so it knows what it may evict without a search.
  // It must not touch the pool's leases from inside the call.
  void SetShareListener(std::function<void(BlockId, bool shared)> listener);

  // Ends the process unless the references of all live leases add up to every block's counts, the
  // free list has each unreferenced block once, and free + active + cached + held == total.
  // O(blocks + references).
  void CheckIntegrity() const;

 private:
  friend class BlockLease;
  using References = std::array<int32_t, 3>;  // by BlockUse

  static int Sum(const References& references);
  // Returns the member of `counts` that counts a block with these references.
  static int& CountFor(const References& references, BlockCounts& counts);
  void AddReference(BlockId id, BlockUse use);
  void DropReference(BlockId id, BlockUse use);
  void ChangeUse(BlockId id, BlockUse from, BlockUse to);

  std::vector<References> references_;  // by BlockId
  std::vector<BlockId> free_;           // a stack, its top at the back
  BlockCounts counts_;
  BlockLease* leases_ = nullptr;  // head of the list of live leases, so that they can be audited
  std::function<void(BlockId, bool)> share_listener_;
};

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_BLOCK_POOL_H_
