// The pairs that BPE may merge next, as (rank, position), lowest first. Two queues with the same
// Push, Pop and empty. Not thread-safe.
#ifndef BATON_COMMON_TOKENIZER_MERGE_QUEUE_H_
#define BATON_COMMON_TOKENIZER_MERGE_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton::tokenizer {

struct MergeCandidate {
  uint32_t rank;
  uint32_t position;
};

// A binary heap: best for up to a few hundred entries.
class HeapMergeQueue {
 public:
  void Push(MergeCandidate candidate) {
    heap_.push_back(static_cast<uint64_t>(candidate.rank) << 32 | candidate.position);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<uint64_t>());
  }

  bool empty() const { return heap_.empty(); }

  // REQUIRES: not empty, as for Pop.
  MergeCandidate Top() const {
    return {static_cast<uint32_t>(heap_.front() >> 32), static_cast<uint32_t>(heap_.front())};
  }

  MergeCandidate Pop() {
    const MergeCandidate top = Top();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<uint64_t>());
    heap_.pop_back();
    return top;
  }

 private:
  std::vector<uint64_t> heap_;
};

// Candidates by rank, each rank sorted when its turn comes. A word of millions of identical
// characters has few ranks, so positions are read sequentially rather than by jumping around a
// large heap.
class BucketMergeQueue {
 public:
  void Push(MergeCandidate candidate) {
    if (current_rank_ && candidate.rank <= *current_rank_) {
      late_.Push(candidate);
      return;
    }
    std::vector<uint32_t>& bucket = buckets_[candidate.rank];
    if (bucket.empty()) ranks_.Push({candidate.rank, 0});
    bucket.push_back(candidate.position);
  }

  bool empty() const { return late_.empty() && next_ == current_.size() && ranks_.empty(); }

  // REQUIRES: not empty.
  MergeCandidate Pop() {
    if (next_ == current_.size() && late_.empty()) OpenLowestBucket();
    if (next_ == current_.size()) return late_.Pop();
    const MergeCandidate next{*current_rank_, current_[next_]};
    if (!late_.empty() && ComesBefore(late_.Top(), next)) return late_.Pop();
    ++next_;
    return next;
  }

 private:
  static bool ComesBefore(MergeCandidate a, MergeCandidate b) {
    return a.rank != b.rank ? a.rank < b.rank : a.position < b.position;
  }

  void OpenLowestBucket() {
    current_rank_ = ranks_.Pop().rank;
    const auto bucket = buckets_.find(*current_rank_);
    current_ = std::move(bucket->second);
    buckets_.erase(bucket);
    next_ = 0;
    if (!std::is_sorted(current_.begin(), current_.end())) {
      std::sort(current_.begin(), current_.end());
    }
  }

  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> buckets_;  // ranks above the current one
  HeapMergeQueue ranks_;                                          // ranks that have a bucket
  std::optional<uint32_t> current_rank_;
  std::vector<uint32_t> current_;  // positions of current_rank_; those from next_ on are left
  size_t next_ = 0;
  HeapMergeQueue late_;  // candidates pushed at or below the current rank
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_MERGE_QUEUE_H_
