#include "decode_worker/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::decode_worker {
namespace {

using SequenceList = std::list<std::unique_ptr<Sequence>>;

SequenceList::iterator FindIn(SequenceList& list, uint64_t id) {
  return std::find_if(list.begin(), list.end(), [id](const std::unique_ptr<Sequence>& sequence) {
    return sequence->id == id;
  });
}

}  // namespace

DecodeScheduler::DecodeScheduler(const SchedulerOptions& options, kv::BlockPool& pool)
    : options_(options), pool_(pool) {}

int DecodeScheduler::BlocksFor(int64_t tokens) const {
  return static_cast<int>((tokens + options_.block_tokens - 1) / options_.block_tokens);
}

int DecodeScheduler::PromptBlocks(const Sequence& sequence) const {
  return BlocksFor(sequence.prompt_tokens);
}

int DecodeScheduler::TotalBlocks(const Sequence& sequence) const {
  // The last token generated is never read back, so it needs no KV.
  return BlocksFor(int64_t{sequence.prompt_tokens} + sequence.max_tokens - 1);
}

absl::Status DecodeScheduler::Submit(std::unique_ptr<Sequence> sequence) {
  BATON_CHECK_GE(sequence->prompt_tokens, 1);
  BATON_CHECK_GE(sequence->max_tokens, 1);
  if (TotalBlocks(*sequence) > pool_.counts().total) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL",
                     absl::StrCat("prompt of ", sequence->prompt_tokens, " and answer of up to ",
                                  sequence->max_tokens, " tokens need ", TotalBlocks(*sequence),
                                  " KV blocks, the decode worker has ", pool_.counts().total,
                                  "; ask for a smaller max_tokens"));
  }
  if (!waiting_.empty() &&
      (waiting_count() >= options_.max_queued_requests ||
       waiting_tokens_ + sequence->prompt_tokens > options_.max_queued_tokens)) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
        absl::StrCat("the decode worker's queue holds ", waiting_count(), " requests and ",
                     waiting_tokens_, " tokens, its bounds are ", options_.max_queued_requests,
                     " and ", options_.max_queued_tokens));
  }
  waiting_tokens_ += sequence->prompt_tokens;
  waiting_.push_back(std::move(sequence));
  return absl::OkStatus();
}

Sequence* DecodeScheduler::Admit() {
  if (waiting_.empty() || receiving_count() + running_count() >= options_.max_num_seqs) {
    return nullptr;
  }
  Sequence& sequence = *waiting_.front();
  absl::StatusOr<kv::BlockLease> blocks = pool_.Acquire(TotalBlocks(sequence), kv::BlockUse::kHeld);
  if (!blocks.ok()) return nullptr;
  sequence.blocks = *std::move(blocks);
  waiting_tokens_ -= sequence.prompt_tokens;
  receiving_.splice(receiving_.end(), waiting_, waiting_.begin());
  return &sequence;
}

void DecodeScheduler::Commit(Sequence& sequence) {
  const auto it = FindIn(receiving_, sequence.id);
  BATON_CHECK(it != receiving_.end()) << "commit of sequence " << sequence.id;
  sequence.blocks.SetUse(kv::BlockUse::kActive);
  running_.splice(running_.end(), receiving_, it);
}

Sequence* DecodeScheduler::Find(uint64_t id) {
  for (SequenceList* list : {&running_, &receiving_, &waiting_}) {
    if (auto it = FindIn(*list, id); it != list->end()) return it->get();
  }
  return nullptr;
}

std::unique_ptr<Sequence> DecodeScheduler::Remove(uint64_t id) {
  for (SequenceList* list : {&running_, &receiving_, &waiting_}) {
    const auto it = FindIn(*list, id);
    if (it == list->end()) continue;
    if (list == &waiting_) waiting_tokens_ -= (*it)->prompt_tokens;
    std::unique_ptr<Sequence> sequence = std::move(*it);
    list->erase(it);
    return sequence;
  }
  return nullptr;
}

std::vector<uint64_t> DecodeScheduler::SequenceIds() const {
  std::vector<uint64_t> ids;
  for (const SequenceList* list : {&running_, &receiving_, &waiting_}) {
    for (const std::unique_ptr<Sequence>& sequence : *list) ids.push_back(sequence->id);
  }
  return ids;
}

}  // namespace baton::decode_worker
