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

BlockLease::BlockLease(BlockPool* pool, BlockUse use, std::vector<BlockId> ids)
    : use_(use), ids_(std::move(ids)) {
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
  other.ids_.clear();
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

BlockLease BlockLease::Share(int begin, int end, BlockUse use) const {
  BATON_CHECK(0 <= begin && begin <= end && end <= size())
      << "[" << begin << ", " << end << ") of " << size() << " blocks";
  for (int i = begin; i < end; ++i) pool_->AddReference(ids_[i], use);
  return BlockLease(pool_, use, std::vector<BlockId>(ids_.begin() + begin, ids_.begin() + end));
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
  tail.Leave();
  tail.ids_.clear();
}

BlockLease BlockLease::SplitAt(int index) {
  BATON_CHECK(0 <= index && index <= size()) << index << " of " << size() << " blocks";
  BlockLease rest(pool_, use_, std::vector<BlockId>(ids_.begin() + index, ids_.end()));
  ids_.resize(index);
  if (empty() && pool_ != nullptr) Leave();
  return rest;
}

void BlockLease::SetUse(BlockUse use) {
  for (BlockId id : ids_) pool_->ChangeUse(id, use_, use);
  use_ = use;
}

void BlockLease::Release() {
  if (pool_ == nullptr) return;
  // Backwards, so that the free list hands the same blocks out again in the same order.
  for (auto id = ids_.rbegin(); id != ids_.rend(); ++id) pool_->DropReference(*id, use_);
  Leave();
  ids_.clear();
}

BlockPool::BlockPool(int block_count) {
  BATON_CHECK_GE(block_count, 0);
  references_.resize(block_count, References{});
  free_.reserve(block_count);
  for (BlockId id = block_count - 1; id >= 0; --id) free_.push_back(id);
  counts_.total = counts_.free = block_count;
}

BlockPool::~BlockPool() {
  BATON_CHECK(leases_ == nullptr) << "a lease of " << leases_->size() << " "
                                  << BlockUseName(leases_->use()) << " blocks outlives its pool";
}

absl::StatusOr<BlockLease> BlockPool::Acquire(int count, BlockUse use) {
  BATON_CHECK_GE(count, 0);
  if (count > counts_.free) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_BLOCKS_EXHAUSTED",
                     absl::StrCat("KV pool: ", count, " blocks wanted, ", counts_.free, " of ",
                                  counts_.total, " free"));
  }
  std::vector<BlockId> ids(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  for (BlockId id : ids) AddReference(id, use);
  return BlockLease(this, use, std::move(ids));
}

int BlockPool::RefCount(BlockId id) const {
  BATON_CHECK(0 <= id && id < counts_.total) << "block " << id << " of " << counts_.total;
  return Sum(references_[id]);
}

void BlockPool::SetShareListener(std::function<void(BlockId, bool shared)> listener) {
  share_listener_ = std::move(listener);
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

void BlockPool::AddReference(BlockId id, BlockUse use) {
  References& references = references_[id];
  --CountFor(references, counts_);
  ++references[Index(use)];
  ++CountFor(references, counts_);
  if (share_listener_ && Sum(references) == 2) share_listener_(id, true);
}

void BlockPool::DropReference(BlockId id, BlockUse use) {
  References& references = references_[id];
  BATON_CHECK_GT(references[Index(use)], 0) << "block " << id << " " << BlockUseName(use);
  --CountFor(references, counts_);
  --references[Index(use)];
  ++CountFor(references, counts_);
  const int left = Sum(references);
  if (left == 0) free_.push_back(id);
  if (share_listener_ && left == 1) share_listener_(id, false);
}

void BlockPool::ChangeUse(BlockId id, BlockUse from, BlockUse to) {
  References& references = references_[id];
  BATON_CHECK_GT(references[Index(from)], 0) << "block " << id << " " << BlockUseName(from);
  --CountFor(references, counts_);
  --references[Index(from)];
  ++references[Index(to)];
  ++CountFor(references, counts_);
}

void BlockPool::CheckIntegrity() const {
  std::vector<References> expected(counts_.total, References{});
  for (const BlockLease* lease = leases_; lease != nullptr; lease = lease->next_) {
    BATON_CHECK(lease->pool_ == this && !lease->empty());
    for (BlockId id : lease->ids_) ++expected[id][Index(lease->use_)];
  }
  BATON_CHECK(expected == references_) << "references differ from what the leases hold";

  std::vector<bool> is_free(counts_.total, false);
  for (BlockId id : free_) {
    BATON_CHECK(!is_free[id]) << "block " << id << " is twice in the free list";
    BATON_CHECK_EQ(Sum(references_[id]), 0) << "block " << id << " is free and referenced";
    is_free[id] = true;
  }
  const auto unreferenced = std::count(references_.begin(), references_.end(), References{});
  BATON_CHECK_EQ(static_cast<size_t>(unreferenced), free_.size()) << "lost blocks";

  BlockCounts recount;
  for (const References& references : references_) ++CountFor(references, recount);
  BATON_CHECK_EQ(recount.free, counts_.free);
  BATON_CHECK_EQ(recount.active, counts_.active);
  BATON_CHECK_EQ(recount.cached, counts_.cached);
  BATON_CHECK_EQ(recount.held, counts_.held);
  BATON_CHECK_EQ(counts_.free + counts_.active + counts_.cached + counts_.held, counts_.total);
}

}  // namespace baton::kv
