// Hands out KV blocks as ref-counted leases. Knows ids only: no tokens, requests or device memory.
//
//   free ── Acquire ──▶ referenced by one lease ── Share ──▶ by several ── last Release ──▶ free
//
// Pages. A pool is of equal pages, and a block has one for each of its tables (KvPages in
// kv_layout.h). Those of layers with a sliding window, its *window pages*, have references of their
// own: a sequence that has left a block behind drops them with DropWindows, and keeps the rest of
// the block. Without such layers a block is one page, and has the page's id.
//
// States. Where a model has recurrent layers, a block's window pages hold their state behind the
// block's last token, or behind the last one so far. Few blocks have such pages: the one that a
// sequence writes to, and those of snapshots, at which a cached prefix can be used.
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
#include "absl/types/span.h"

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

// The counts are of pages.
struct BlockCounts {
  int total = 0;
  int free = 0;
  int active = 0;
  int cached = 0;
  int held = 0;
};

// The pages of a block, and how long a sequence needs its window pages.
struct BlockShape {
  int full_pages = 1;
  int window_pages = 0;
  // How many blocks before a token have KV that it may need in window pages.
  int window_blocks = 0;
  // Window pages hold states: window_blocks is 1.
  bool recurrent = false;

  int pages() const { return full_pages + window_pages; }
  bool windowed() const { return window_pages > 0; }
  // The first block whose window pages are needed by what follows `blocks` whole blocks, perhaps
  // with a partial one behind them, and by their last token.
  int FirstWindowBlock(int blocks) const {
    return blocks > window_blocks ? blocks - window_blocks : 0;
  }
  // The same for the token at `position` and those behind it.
  int FirstWindowBlockAt(int position, int block_tokens) const {
    return FirstWindowBlock((position + 1) / block_tokens);
  }
  // The first block whose window pages the token at `position` sees.
  int FirstSeenBlock(int position, int block_tokens) const {
    if (!recurrent) return FirstWindowBlockAt(position, block_tokens);
    return position == 0 ? 0 : (position - 1) / block_tokens;
  }
  // The first of a sequence's blocks whose window pages are to be brought, so that it goes on
  // behind `tokens` tokens, the last of which may be computed again unless there are states.
  int FirstBroughtBlock(int tokens, int block_tokens) const {
    return recurrent ? (tokens - 1) / block_tokens : FirstWindowBlock((tokens - 1) / block_tokens);
  }
  // The pages of a sequence of so many blocks that has window pages in `windowed` of them.
  int64_t PagesOf(int64_t blocks, int64_t windowed) const {
    return blocks * full_pages + (windowed < blocks ? windowed : blocks) * window_pages;
  }
  // How many blocks with window pages a sequence needs to grow block by block; with states, its own
  // and the one behind its last whole block.
  int64_t LeastWindows() const { return recurrent ? 2 : int64_t{window_blocks} + 2; }
  // The pages that a sequence of so many blocks needs to do so.
  int64_t LeastPages(int64_t blocks) const { return PagesOf(blocks, LeastWindows()); }
  // The most blocks of which PagesOf(blocks, windowed) is at most `pages`.
  int64_t MostBlocks(int64_t pages, int64_t windowed) const {
    const int64_t all = windowed * (full_pages + window_pages);
    return pages < all ? pages / (full_pages + window_pages)
                       : (pages - windowed * window_pages) / full_pages;
  }
  // The state that a chunk goes on from, and the one that it leaves.
  static constexpr int kComputedStates = 2;
  // How many blocks with window pages a sequence of so many blocks holds that is computed in chunks
  // of up to `chunk_blocks`: those before a chunk that it needs, and the chunk's; fewer where the
  // sequence would then take more than half of a pool of so many pages.
  int ComputedWindows(int64_t blocks, int chunk_blocks, int64_t pages) const {
    if (!windowed()) return 0;
    if (recurrent) return kComputedStates;
    const int64_t least = LeastWindows();
    const int64_t most = int64_t{window_blocks} + chunk_blocks;
    const int64_t in_half = (pages / 2 - blocks * full_pages) / window_pages;
    return static_cast<int>(in_half < least ? least : in_half < most ? in_half : most);
  }
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

  // Returns the shape of its pool's blocks; of an empty lease, that of blocks of one page.
  BlockShape shape() const;
  // The pages that it refers to; those of blocks that it has twice count twice.
  int page_count() const;
  // Whether it refers to the window pages of its block `index`, too.
  bool has_window(int index) const { return !windows_.empty() && windows_[index] != 0; }
  // The pages of block `index` by table; -1: a window page that it does not refer to.
  std::vector<int32_t> PagesOf(int index) const;
  // The pages of the blocks [begin, end) as [table][block], in the same way. For pools whose blocks
  // are pages: their ids.
  std::vector<int32_t> Tables(int begin, int end) const;
  // The same without window pages.
  std::vector<int32_t> FullTables(int begin, int end) const;
  // The window pages of block `index`. REQUIRES: has_window(index).
  absl::Span<const int32_t> WindowPagesOf(int index) const;

  // Returns new references to the blocks at [begin, end), and to the window pages, as far as this
  // lease has them, of those at [window_begin, end). REQUIRES: 0 <= begin <= end <= size().
  BlockLease Share(int begin, int end, BlockUse use, int window_begin = 0) const;

  // Puts tail's blocks after this lease's own; `tail` is empty afterwards. An empty lease takes
  // over the tail's pool and use. REQUIRES otherwise, unless the tail is empty: same pool, same
  // use.
  void Append(BlockLease&& tail);

  // Keeps [0, index) and returns the rest. REQUIRES: 0 <= index <= size().
  BlockLease SplitAt(int index);

  void SetUse(BlockUse use);

  // Gives the references to the window pages of the blocks before `end` back. At most size().
  void DropWindows(int end);
  // Gives window pages to the blocks of [begin, end) that have none, in their order, as long as
  // pages are free. Returns the first block of the range that has none; `end` if all have.
  // REQUIRES: no other lease refers to window pages of those blocks.
  int AddWindows(int begin, int end);
  // Moves the window pages of block `from` to block `to`, which has none. REQUIRES: no other lease
  // refers to window pages of either.
  void MoveWindow(int from, int to);
  int window_count() const;  // blocks with window pages
  // The last block with window pages; -1: there is none.
  int LastWindow() const;
  // Refers to the window pages that `other` has of the blocks [begin, end), too, which both have at
  // these indexes.
  void ShareWindows(const BlockLease& other, int begin, int end);
  // How many blocks have window pages that no lease but this one and the prefix cache's refers to.
  // REQUIRES: the prefix cache does.
  int OwnWindows() const;
  // How many blocks of [begin, end) lack window pages.
  int LackingWindows(int begin, int end) const;

  // Gives all references back now.
  void Release();

 private:
  friend class BlockPool;
  friend class RadixCache;
  BlockLease(BlockPool* pool, BlockUse use, std::vector<BlockId> ids, std::vector<uint8_t> windows);

  // The lease gives its block `index`, which has no window pages here, back, and refers to other's
  // block of the same tokens and to its window pages instead. The prefix cache calls it.
  void Replace(int index, const BlockLease& other, int other_index);
  void DropWindow(int index);
  std::vector<int32_t> Tables(int begin, int end, int tables) const;

  void TakeFrom(BlockLease& other) noexcept;
  void Join(BlockPool* pool);  // enters the pool's list of leases
  void Leave();

  // pool_ is set, and the lease is in the pool's list, exactly while ids_ is not empty.
  BlockPool* pool_ = nullptr;
  BlockUse use_ = BlockUse::kActive;
  std::vector<BlockId> ids_;
  std::vector<uint8_t> windows_;  // by index, of pools with window pages: 1 if it refers to them
  int windows_from_ = 0;          // no block before it has window pages
  BlockLease* previous_ = nullptr;
  BlockLease* next_ = nullptr;
};

// Must outlive its leases (checked).
class BlockPool {
 public:
  // REQUIRES: page_count >= 0.
  explicit BlockPool(int page_count, const BlockShape& shape = {});
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Blocks with all their pages. RESOURCE_EXHAUSTED with reason KV_BLOCKS_EXHAUSTED, taking
  // nothing, if fewer pages are free than that takes. REQUIRES: count >= 0.
  //
  // The block freed last is handed out first: it is the likeliest to be in the CPU's caches and
  // TLB, and blocks never used stay untouched memory. The order depends on the calls only.
  absl::StatusOr<BlockLease> Acquire(int count, BlockUse use) {
    return Acquire(count, use, 0, count);
  }
  // The same, but only the blocks of [window_begin, window_end) get window pages.
  // REQUIRES: window_begin <= window_end <= count.
  absl::StatusOr<BlockLease> Acquire(int count, BlockUse use, int window_begin, int window_end);

  const BlockShape& shape() const { return shape_; }
  const BlockCounts& counts() const { return counts_; }
  int RefCount(BlockId id) const;
  // References to the block's window pages; 0: it has none.
  int WindowRefCount(BlockId id) const;
  int block_count() const { return static_cast<int>(references_.size()); }

  // Called each time a block's references grow from one to two (shared = true) and shrink from two
  // to one (false); the second one, each time those to its window pages do. One listener, the
  // prefix cache: so it knows what it may evict without a search. It must not touch the pool's
  // leases from inside the call.
  void SetShareListener(std::function<void(BlockId, bool shared)> listener,
                        std::function<void(BlockId, bool shared)> window_listener = nullptr);

  // Ends the process unless the references of all live leases add up to every block's counts, the
  // free list has each unreferenced block once, each page is a block's or free, and free + active +
  // cached + held == total. O(blocks + references).
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
  // The same for its window pages. The first reference takes pages, the last one frees them.
  void AddWindowReference(BlockId id, BlockUse use);
  void DropWindowReference(BlockId id, BlockUse use);
  void ChangeWindowUse(BlockId id, BlockUse from, BlockUse to);
  bool one_page() const { return shape_.pages() == 1; }
  int32_t* PagesOf(BlockId id) { return &pages_[size_t{1} * id * shape_.full_pages]; }
  const int32_t* PagesOf(BlockId id) const { return &pages_[size_t{1} * id * shape_.full_pages]; }
  void TakePages(absl::Span<int32_t> pages);
  void FreePages(absl::Span<int32_t> pages);

  const BlockShape shape_;
  std::vector<References> references_;         // by BlockId
  std::vector<References> window_references_;  // likewise, of pools with window pages
  std::vector<BlockId> free_;                  // a stack, its top at the back
  // Where a block has several pages: by BlockId, those of each full table, -1: none; its window
  // pages, empty: none; and a stack.
  std::vector<int32_t> pages_;
  std::vector<std::vector<int32_t>> window_pages_;
  std::vector<int32_t> free_pages_;
  BlockCounts counts_;
  BlockLease* leases_ = nullptr;  // head of the list of live leases, so that they can be audited
  std::function<void(BlockId, bool)> share_listener_;
  std::function<void(BlockId, bool)> window_listener_;
};

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_BLOCK_POOL_H_
