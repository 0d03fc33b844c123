#include "common/kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::kv {
namespace {

size_t Index(BlockUse use) { return static_cast<size_t>(use); }

}  // namespace

absl::string_view BlockUseName(BlockUse use) {
  if (use == BlockUse::kActive) return "active";
  return use == BlockUse::kHeld ? "held" : "cached";
}

BlockLease::BlockLease(BlockPool* pool, BlockUse use, std::vector<BlockId> ids,
                       std::vector<uint8_t> windows)
    : use_(use), ids_(std::move(ids)), windows_(std::move(windows)) {
  if (!ids_.empty()) Join(pool);
}

BlockLease& BlockLease::operator=(BlockLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  TakeFrom(other);
  return *this;
}

void BlockLease::TakeFrom(BlockLease& other) noexcept {
  use_ = other.use_;
  ids_ = std::move(other.ids_);
  windows_ = std::move(other.windows_);
  windows_from_ = std::exchange(other.windows_from_, 0);
  other.ids_.clear();
  other.windows_.clear();
  if (BlockPool* pool = other.pool_) {
    other.Leave();
    Join(pool);
  }
}

void BlockLease::Join(BlockPool* pool) {
  pool_ = pool;
  previous_ = nullptr;
  next_ = pool->leases_;
  if (next_ != nullptr) next_->previous_ = this;
  pool->leases_ = this;
}

void BlockLease::Leave() {
  (previous_ != nullptr ? previous_->next_ : pool_->leases_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  previous_ = next_ = nullptr;
  pool_ = nullptr;
}

BlockShape BlockLease::shape() const { return pool_ == nullptr ? BlockShape() : pool_->shape(); }

int BlockLease::page_count() const {
  if (empty()) return 0;
  const BlockShape& shape = pool_->shape();
  return size() * shape.full_pages + window_count() * shape.window_pages;
}

std::vector<int32_t> BlockLease::PagesOf(int index) const { return Tables(index, index + 1); }

std::vector<int32_t> BlockLease::Tables(int begin, int end) const {
  return Tables(begin, end, shape().pages());
}

std::vector<int32_t> BlockLease::FullTables(int begin, int end) const {
  return Tables(begin, end, shape().full_pages);
}

std::vector<int32_t> BlockLease::Tables(int begin, int end, int tables) const {
  BATON_CHECK(0 <= begin && begin <= end && end <= size())
      << "[" << begin << ", " << end << ") of " << size() << " blocks";
  if (begin == end) return {};
  if (pool_->one_page()) return {ids_.begin() + begin, ids_.begin() + end};
  const int full = pool_->shape().full_pages, count = end - begin;
  std::vector<int32_t> all(size_t{1} * tables * count, -1);
  for (int i = 0; i < count; ++i) {
    const int32_t* const pages = pool_->PagesOf(ids_[begin + i]);
    for (int table = 0; table < full; ++table) all[size_t{1} * table * count + i] = pages[table];
    if (!has_window(begin + i)) continue;
    const absl::Span<const int32_t> window = WindowPagesOf(begin + i);
    for (int table = full; table < tables; ++table) {
      all[size_t{1} * table * count + i] = window[table - full];
    }
  }
  return all;
}

absl::Span<const int32_t> BlockLease::WindowPagesOf(int index) const {
  BATON_CHECK(has_window(index)) << "block " << index;
  return pool_->window_pages_[ids_[index]];
}

BlockLease BlockLease::Share(int begin, int end, BlockUse use, int window_begin) const {
  BATON_CHECK(0 <= begin && begin <= end && end <= size())
      << "[" << begin << ", " << end << ") of " << size() << " blocks";
  std::vector<uint8_t> windows;
  if (!windows_.empty()) windows.assign(windows_.begin() + begin, windows_.begin() + end);
  for (int i = begin; i < end; ++i) {
    pool_->AddReference(ids_[i], use);
    if (!has_window(i)) continue;
    if (i >= window_begin) {
      pool_->AddWindowReference(ids_[i], use);
    } else {
      windows[i - begin] = 0;
    }
  }
  return BlockLease(pool_, use, std::vector<BlockId>(ids_.begin() + begin, ids_.begin() + end),
                    std::move(windows));
}

void BlockLease::Append(BlockLease&& tail) {
  BATON_CHECK(&tail != this);
  if (tail.empty()) return;
  if (empty()) {
    TakeFrom(tail);
    return;
  }
  BATON_CHECK(pool_ == tail.pool_) << "blocks of another pool";
  BATON_CHECK(use_ == tail.use_) << BlockUseName(tail.use_) << " blocks to a lease of "
                                 << BlockUseName(use_) << " ones";
  ids_.insert(ids_.end(), tail.ids_.begin(), tail.ids_.end());
  windows_.insert(windows_.end(), tail.windows_.begin(), tail.windows_.end());
  tail.Leave();
  tail.ids_.clear();
  tail.windows_.clear();
  tail.windows_from_ = 0;
}

BlockLease BlockLease::SplitAt(int index) {
  BATON_CHECK(0 <= index && index <= size()) << index << " of " << size() << " blocks";
  std::vector<uint8_t> windows;
  if (!windows_.empty()) {
    windows.assign(windows_.begin() + index, windows_.end());
    windows_.resize(index);
  }
  BlockLease rest(pool_, use_, std::vector<BlockId>(ids_.begin() + index, ids_.end()),
                  std::move(windows));
  ids_.resize(index);
  windows_from_ = std::min(windows_from_, index);
  if (empty() && pool_ != nullptr) Leave();
  return rest;
}

void BlockLease::SetUse(BlockUse use) {
  for (int i = 0; i < size(); ++i) {
    if (has_window(i)) pool_->ChangeWindowUse(ids_[i], use_, use);
    pool_->ChangeUse(ids_[i], use_, use);
  }
  use_ = use;
}

void BlockLease::DropWindow(int index) {
  if (!has_window(index)) return;
  windows_[index] = 0;
  pool_->DropWindowReference(ids_[index], use_);
}

void BlockLease::DropWindows(int end) {
  if (windows_.empty() || end <= windows_from_) return;
  end = std::min(end, size());
  for (int i = end - 1; i >= windows_from_; --i) DropWindow(i);
  windows_from_ = end;
}

int BlockLease::AddWindows(int begin, int end) {
  if (empty() || !pool_->shape().windowed()) return end;
  for (int i = begin; i < end; ++i) {
    if (has_window(i)) continue;
    if (pool_->counts().free < pool_->shape().window_pages) return i;
    BATON_CHECK_EQ(pool_->WindowRefCount(ids_[i]), 0) << "block " << ids_[i];
    pool_->AddWindowReference(ids_[i], use_);
    windows_[i] = 1;
    windows_from_ = std::min(windows_from_, i);
  }
  return end;
}

void BlockLease::MoveWindow(int from, int to) {
  BATON_CHECK(has_window(from) && !has_window(to)) << from << " to " << to;
  BATON_CHECK_EQ(pool_->WindowRefCount(ids_[from]), 1) << "block " << ids_[from];
  BATON_CHECK_EQ(pool_->WindowRefCount(ids_[to]), 0) << "block " << ids_[to];
  DropWindow(from);
  BATON_CHECK_EQ(AddWindows(to, to + 1), to + 1);
}

int BlockLease::window_count() const {
  return static_cast<int>(std::count(windows_.begin(), windows_.end(), 1));
}

int BlockLease::LastWindow() const {
  int index = static_cast<int>(windows_.size()) - 1;
  while (index >= windows_from_ && windows_[index] == 0) --index;
  return index >= windows_from_ ? index : -1;
}

void BlockLease::ShareWindows(const BlockLease& other, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    BATON_CHECK_EQ(ids_[i], other.ids_[i]) << "another block at " << i;
    if (has_window(i) || !other.has_window(i)) continue;
    pool_->AddWindowReference(ids_[i], use_);
    windows_[i] = 1;
    windows_from_ = std::min(windows_from_, i);
  }
}

int BlockLease::OwnWindows() const {
  int own = 0;
  for (int i = windows_from_; i < size(); ++i) {
    own += has_window(i) && pool_->WindowRefCount(ids_[i]) == 2 ? 1 : 0;
  }
  return own;
}

int BlockLease::LackingWindows(int begin, int end) const {
  if (windows_.empty()) return 0;
  return static_cast<int>(std::count(windows_.begin() + begin, windows_.begin() + end, 0));
}

void BlockLease::Replace(int index, const BlockLease& other, int other_index) {
  BATON_CHECK(!has_window(index) && other.has_window(other_index) && pool_ == other.pool_);
  const BlockId own = ids_[index], next = other.ids_[other_index];
  if (own != next) {
    pool_->AddReference(next, use_);
    ids_[index] = next;
    pool_->DropReference(own, use_);
  }
  pool_->AddWindowReference(next, use_);
  windows_[index] = 1;
  windows_from_ = std::min(windows_from_, index);
}

void BlockLease::Release() {
  if (pool_ == nullptr) return;
  // Backwards, so that the free list hands the same blocks out again in the same order.
  for (int i = size() - 1; i >= 0; --i) {
    DropWindow(i);
    pool_->DropReference(ids_[i], use_);
  }
  Leave();
  ids_.clear();
  windows_.clear();
  windows_from_ = 0;
}

BlockPool::BlockPool(int page_count, const BlockShape& shape) : shape_(shape) {
  BATON_CHECK_GE(page_count, 0);
  BATON_CHECK(shape.full_pages >= 1 && shape.window_pages >= 0);
  const int block_count = page_count / shape.full_pages;
  references_.resize(block_count, References{});
  free_.reserve(block_count);
  for (BlockId id = block_count - 1; id >= 0; --id) free_.push_back(id);
  counts_.total = counts_.free = page_count;
  if (one_page()) return;
  if (shape.windowed()) {
    window_references_.resize(block_count, References{});
    window_pages_.resize(block_count);
  }
  pages_.resize(size_t{1} * block_count * shape.full_pages, -1);
  free_pages_.reserve(page_count);
  for (int32_t page = page_count - 1; page >= 0; --page) free_pages_.push_back(page);
}

BlockPool::~BlockPool() {
  BATON_CHECK(leases_ == nullptr) << "a lease of " << leases_->size() << " "
                                  << BlockUseName(leases_->use()) << " blocks outlives its pool";
}

absl::StatusOr<BlockLease> BlockPool::Acquire(int count, BlockUse use, int window_begin,
                                              int window_end) {
  BATON_CHECK(0 <= count && 0 <= window_begin && window_begin <= window_end && window_end <= count);
  const int64_t pages = shape_.PagesOf(count, window_end - window_begin);
  if (pages > counts_.free) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_BLOCKS_EXHAUSTED",
                     absl::StrCat("KV pool: ", pages, one_page() ? " blocks" : " pages",
                                  " wanted, ", counts_.free, " of ", counts_.total, " free"));
  }
  std::vector<BlockId> ids(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  std::vector<uint8_t> windows(shape_.windowed() ? count : 0, 0);
  for (int i = 0; i < count; ++i) {
    if (!one_page()) TakePages({PagesOf(ids[i]), static_cast<size_t>(shape_.full_pages)});
    AddReference(ids[i], use);
    if (!shape_.windowed() || i < window_begin || i >= window_end) continue;
    AddWindowReference(ids[i], use);
    windows[i] = 1;
  }
  return BlockLease(this, use, std::move(ids), std::move(windows));
}

int BlockPool::RefCount(BlockId id) const {
  BATON_CHECK(0 <= id && id < block_count()) << "block " << id << " of " << block_count();
  return Sum(references_[id]);
}

int BlockPool::WindowRefCount(BlockId id) const {
  return window_references_.empty() ? 0 : Sum(window_references_[id]);
}

void BlockPool::SetShareListener(std::function<void(BlockId, bool shared)> listener,
                                 std::function<void(BlockId, bool shared)> window_listener) {
  share_listener_ = std::move(listener);
  window_listener_ = std::move(window_listener);
}

int BlockPool::Sum(const References& references) {
  return references[0] + references[1] + references[2];
}

int& BlockPool::CountFor(const References& references, BlockCounts& counts) {
  if (references[Index(BlockUse::kActive)] > 0) return counts.active;
  if (references[Index(BlockUse::kHeld)] > 0) return counts.held;
  if (references[Index(BlockUse::kCached)] > 0) return counts.cached;
  return counts.free;
}

void BlockPool::TakePages(absl::Span<int32_t> pages) {
  for (int32_t& page : pages) {
    page = free_pages_.back();
    free_pages_.pop_back();
  }
}

void BlockPool::FreePages(absl::Span<int32_t> pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    free_pages_.push_back(std::exchange(*page, -1));
  }
}

void BlockPool::AddReference(BlockId id, BlockUse use) {
  References& references = references_[id];
  CountFor(references, counts_) -= shape_.full_pages;
  ++references[Index(use)];
  CountFor(references, counts_) += shape_.full_pages;
  if (share_listener_ && Sum(references) == 2) share_listener_(id, true);
}

void BlockPool::DropReference(BlockId id, BlockUse use) {
  References& references = references_[id];
  BATON_CHECK_GT(references[Index(use)], 0) << "block " << id << " " << BlockUseName(use);
  CountFor(references, counts_) -= shape_.full_pages;
  --references[Index(use)];
  CountFor(references, counts_) += shape_.full_pages;
  const int left = Sum(references);
  if (left == 0) {
    BATON_CHECK_EQ(WindowRefCount(id), 0) << "block " << id;
    if (!one_page()) FreePages({PagesOf(id), static_cast<size_t>(shape_.full_pages)});
    free_.push_back(id);
  }
  if (share_listener_ && left == 1) share_listener_(id, false);
}

void BlockPool::ChangeUse(BlockId id, BlockUse from, BlockUse to) {
  References& references = references_[id];
  BATON_CHECK_GT(references[Index(from)], 0) << "block " << id << " " << BlockUseName(from);
  CountFor(references, counts_) -= shape_.full_pages;
  --references[Index(from)];
  ++references[Index(to)];
  CountFor(references, counts_) += shape_.full_pages;
}

void BlockPool::AddWindowReference(BlockId id, BlockUse use) {
  References& references = window_references_[id];
  if (Sum(references) == 0) {
    window_pages_[id].resize(shape_.window_pages);
    TakePages(absl::MakeSpan(window_pages_[id]));
  }
  CountFor(references, counts_) -= shape_.window_pages;
  ++references[Index(use)];
  CountFor(references, counts_) += shape_.window_pages;
  if (window_listener_ && Sum(references) == 2) window_listener_(id, true);
}

void BlockPool::DropWindowReference(BlockId id, BlockUse use) {
  References& references = window_references_[id];
  BATON_CHECK_GT(references[Index(use)], 0) << "window pages of block " << id;
  CountFor(references, counts_) -= shape_.window_pages;
  --references[Index(use)];
  CountFor(references, counts_) += shape_.window_pages;
  const int left = Sum(references);
  if (left == 0) {
    FreePages(absl::MakeSpan(window_pages_[id]));
    window_pages_[id] = {};
  }
  if (window_listener_ && left == 1) window_listener_(id, false);
}

void BlockPool::ChangeWindowUse(BlockId id, BlockUse from, BlockUse to) {
  References& references = window_references_[id];
  BATON_CHECK_GT(references[Index(from)], 0) << "window pages of block " << id;
  CountFor(references, counts_) -= shape_.window_pages;
  --references[Index(from)];
  ++references[Index(to)];
  CountFor(references, counts_) += shape_.window_pages;
}

void BlockPool::CheckIntegrity() const {
  std::vector<References> expected(references_.size(), References{});
  std::vector<References> expected_windows(window_references_.size(), References{});
  for (const BlockLease* lease = leases_; lease != nullptr; lease = lease->next_) {
    BATON_CHECK(lease->pool_ == this && !lease->empty());
    BATON_CHECK_EQ(lease->windows_.size(), shape_.windowed() ? lease->ids_.size() : 0);
    for (int i = 0; i < lease->size(); ++i) {
      ++expected[lease->ids_[i]][Index(lease->use_)];
      if (lease->has_window(i)) ++expected_windows[lease->ids_[i]][Index(lease->use_)];
    }
  }
  BATON_CHECK(expected == references_) << "references differ from what the leases hold";
  BATON_CHECK(expected_windows == window_references_) << "references to window pages differ";

  std::vector<bool> is_free(references_.size(), false);
  for (BlockId id : free_) {
    BATON_CHECK(!is_free[id]) << "block " << id << " is twice in the free list";
    BATON_CHECK_EQ(Sum(references_[id]), 0) << "block " << id << " is free and referenced";
    is_free[id] = true;
  }
  const auto unreferenced = std::count(references_.begin(), references_.end(), References{});
  BATON_CHECK_EQ(static_cast<size_t>(unreferenced), free_.size()) << "lost blocks";

  BlockCounts recount;
  for (const References& references : references_) {
    CountFor(references, recount) += shape_.full_pages;
  }
  for (const References& references : window_references_) {
    CountFor(references, recount) += shape_.window_pages;
  }
  BATON_CHECK_EQ(recount.active, counts_.active);
  BATON_CHECK_EQ(recount.cached, counts_.cached);
  BATON_CHECK_EQ(recount.held, counts_.held);
  BATON_CHECK_EQ(counts_.free + counts_.active + counts_.cached + counts_.held, counts_.total);
  if (one_page()) return;
  std::vector<bool> seen(counts_.total, false);
  const auto see = [&seen](int32_t page) {
    BATON_CHECK(page >= 0 && !seen[page]) << "page " << page << " is used twice";
    seen[page] = true;
  };
  for (const int32_t page : free_pages_) see(page);
  BATON_CHECK_EQ(static_cast<int>(free_pages_.size()), counts_.free);
  for (BlockId id = 0; id < block_count(); ++id) {
    for (int table = 0; table < shape_.full_pages; ++table) {
      if (RefCount(id) > 0) {
        see(PagesOf(id)[table]);
      } else {
        BATON_CHECK_EQ(PagesOf(id)[table], -1);
      }
    }
    if (!shape_.windowed()) continue;
    BATON_CHECK_EQ(static_cast<int>(window_pages_[id].size()),
                   WindowRefCount(id) > 0 ? shape_.window_pages : 0);
    for (const int32_t page : window_pages_[id]) see(page);
  }
}

}  // namespace baton::kv
