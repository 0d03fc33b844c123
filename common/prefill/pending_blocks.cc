#include "common/prefill/pending_blocks.h"

#include <algorithm>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace baton::prefill {

// Running jobs, in order of their start, come before all waiting ones. The order has no cycles, so
// jobs never wait for each other in a cycle.
bool PendingBlocks::Before(const PrefillJob* a, const PrefillJob* b) {
  if (a->running() != b->running()) return a->running();
  if (a->running()) return a->start_order < b->start_order;
  return a->rank < b->rank;
}

void PendingBlocks::List(PrefillJob* job, int block) {
  Jobs& jobs = jobs_[job->keys[block]];
  jobs.insert(std::upper_bound(jobs.begin(), jobs.end(), job, Before), job);
}

void PendingBlocks::Add(PrefillJob* job, int from) {
  job->pending_from = std::min(from, static_cast<int>(job->keys.size()));
  for (size_t i = job->pending_from; i < job->keys.size(); ++i) List(job, static_cast<int>(i));
}

void PendingBlocks::ListFrom(PrefillJob* job, int from) {
  while (job->pending_from > from) List(job, --job->pending_from);
}

void PendingBlocks::Remove(PrefillJob* job) {
  for (size_t i = job->pending_from; i < job->keys.size(); ++i) Erase(job, static_cast<int>(i));
}

void PendingBlocks::Computed(PrefillJob* job, int end) {
  const int listed_end = std::min(end, static_cast<int>(job->keys.size()));
  while (job->pending_from < listed_end) Erase(job, job->pending_from++);
}

void PendingBlocks::Erase(PrefillJob* job, int block) {
  const auto found = jobs_.find(job->keys[block]);
  BATON_CHECK(found != jobs_.end()) << "job " << job->id << ", block " << block;
  Jobs& jobs = found->second;
  const auto place = std::find(jobs.begin(), jobs.end(), job);
  BATON_CHECK(place != jobs.end()) << "job " << job->id << ", block " << block;
  jobs.erase(place);
  if (jobs.empty()) jobs_.erase(found);
}

int PendingBlocks::SharedBlocks(const PrefillJob& a, const PrefillJob& b) const {
  if (a.root != b.root) return 0;
  const auto [end, other] =
      std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
  const size_t blocks = static_cast<size_t>(end - a.tokens.begin()) / block_tokens_;
  return static_cast<int>(std::min({blocks, a.keys.size(), b.keys.size()}));
}

// Equal keys prove nothing; equal tokens do.
bool PendingBlocks::Shares(const PrefillJob& a, const PrefillJob& b, int block) const {
  const size_t count = static_cast<size_t>(block + 1) * block_tokens_;
  return a.root == b.root && a.tokens.size() >= count && b.tokens.size() >= count &&
         absl::MakeConstSpan(a.tokens).first(count) == absl::MakeConstSpan(b.tokens).first(count);
}

PrefillJob* PendingBlocks::Leader(const PrefillJob& job, int block) const {
  if (static_cast<size_t>(block) >= job.keys.size()) return nullptr;
  const auto found = jobs_.find(job.keys[block]);
  if (found == jobs_.end()) return nullptr;
  PrefillJob* first = found->second.front();
  return Before(first, &job) && Shares(*first, job, block) ? first : nullptr;
}

PrefillJob* PendingBlocks::Other(const PrefillJob& job, int block) const {
  if (static_cast<size_t>(block) >= job.keys.size()) return nullptr;
  const auto found = jobs_.find(job.keys[block]);
  if (found == jobs_.end()) return nullptr;
  for (PrefillJob* other : found->second) {
    if (other != &job && Shares(*other, job, block)) return other;
  }
  return nullptr;
}

void PendingBlocks::CheckIntegrity(const std::vector<const PrefillJob*>& jobs) const {
  size_t expected = 0;
  for (const PrefillJob* job : jobs) {
    BATON_CHECK_GE(job->pending_from, std::min(job->computed_tokens / block_tokens_,
                                               static_cast<int>(job->keys.size())));
    for (size_t i = job->pending_from; i < job->keys.size(); ++i) {
      const auto found = jobs_.find(job->keys[i]);
      BATON_CHECK(found != jobs_.end());
      BATON_CHECK_EQ(std::count(found->second.begin(), found->second.end(), job), 1);
      ++expected;
    }
  }
  size_t present = 0;
  for (const auto& [key, list] : jobs_) {
    BATON_CHECK(std::is_sorted(list.begin(), list.end(), Before));
    present += list.size();
  }
  BATON_CHECK_EQ(present, expected);
}

}  // namespace baton::prefill
