#include "common/worker/watch_report.h"

#include <algorithm>

namespace baton::worker {

using internal::v1::WatchResponse;

internal::v1::LoadReport ToProto(const WorkerLoad& load, absl::Duration now) {
  internal::v1::LoadReport numbers;
  numbers.set_running(load.running);
  numbers.set_queued(load.queued);
  numbers.set_queued_tokens(load.queued_tokens);
  numbers.set_free_blocks(load.free_blocks);
  numbers.set_active_blocks(load.counts.active);
  numbers.set_cached_blocks(load.counts.cached);
  numbers.set_held_blocks(load.counts.held);
  numbers.set_retained_blocks(load.retained_blocks);
  numbers.set_open_transfers(load.open_transfers);
  numbers.set_draining(load.draining);
  numbers.set_drained(load.drained);
  numbers.set_remaining_work_us(absl::ToInt64Microseconds(load.remaining_work));
  if (load.prefill_cost) *numbers.mutable_prefill_cost() = *load.prefill_cost;
  if (load.decode_cost) *numbers.mutable_decode_cost() = *load.decode_cost;
  numbers.set_kv_tier_load_us(absl::ToInt64Microseconds(load.tier_load_time));
  numbers.set_context_tokens(load.context_tokens);
  numbers.set_receiving(load.receiving);
  numbers.set_computed_prompt_tokens(load.computed_prompt_tokens);
  numbers.set_generated_tokens(load.generated_tokens);
  numbers.set_draft_tokens(load.draft_tokens);
  numbers.set_accepted_draft_tokens(load.accepted_draft_tokens);
  numbers.set_age_us(absl::ToInt64Microseconds(now - load.read_at));
  numbers.set_accepted_age_us(absl::ToInt64Microseconds(now - load.last_accepted_at));
  return numbers;
}

std::vector<WatchResponse> WatchReport::Next(const WorkerLoad& load, absl::Duration now) {
  std::vector<WatchResponse> report;
  if (!introduced_) *report.emplace_back().mutable_card() = card_;
  AddCacheChanges(&report);
  introduced_ = true;
  internal::v1::LoadReport& numbers = *report.emplace_back().mutable_load();
  numbers = ToProto(load, now);
  if (load.links != nullptr && load.links != sent_links_) {
    sent_links_ = load.links;
    for (const LinkRate& link : *load.links) {
      internal::v1::LinkRate& told = *numbers.add_links();
      told.set_worker_id(link.worker_id);
      told.set_epoch(link.epoch);
      told.set_bytes_per_second(link.bytes_per_second);
      told.set_age_us(absl::ToInt64Microseconds(now - link.measured_at));
    }
  }
  return report;
}

void WatchReport::AddCacheChanges(std::vector<WatchResponse>* report) {
  std::optional<CacheJournal::Delta> delta;
  if (introduced_) delta = journal_.Since(journal_position_);
  if (!delta) {
    const CacheJournal::Snapshot snapshot = journal_.TakeSnapshot();
    journal_position_ = snapshot.position;
    ++sequence_;
    for (size_t begin = 0; begin == 0 || begin < snapshot.keys.size(); begin += kKeysPerMessage) {
      const size_t end = std::min(snapshot.keys.size(), begin + kKeysPerMessage);
      auto* message = report->emplace_back().mutable_snapshot();
      message->set_sequence(sequence_);
      message->mutable_keys()->Add(snapshot.keys.begin() + begin, snapshot.keys.begin() + end);
      message->set_last(end == snapshot.keys.size());
    }
    return;
  }
  journal_position_ = delta->next_position;
  if (!delta->added.empty() || !delta->removed.empty()) {
    auto* message = report->emplace_back().mutable_delta();
    message->set_sequence(++sequence_);
    message->mutable_added()->Add(delta->added.begin(), delta->added.end());
    message->mutable_removed()->Add(delta->removed.begin(), delta->removed.end());
  }
}

}  // namespace baton::worker
