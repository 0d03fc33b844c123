#include "router/routing/decision_log.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "router/fleet/worker.h"

namespace baton::router {

v1::Decision ToProto(const Decision& decision) {
  v1::Decision told;
  told.set_request_id(decision.request_id);
  told.set_time_unix_ms(absl::ToUnixMillis(decision.time));
  told.set_prompt_tokens(decision.prompt_tokens);
  told.set_policy(std::string(decision.policy));
  told.set_decision(std::string(decision.label));
  told.set_computes_address(decision.computes_address);
  told.set_answers_address(decision.answers_address);
  const auto does_both = [&decision](v1::WorkerRole role) {
    return decision.computes == decision.answers &&
           absl::c_any_of(decision.candidates, [&](const DecisionCandidate& candidate) {
             return candidate.worker == decision.computes && candidate.role == role;
           });
  };
  if (!does_both(v1::WORKER_ROLE_DECODE)) told.set_prefill_address(decision.computes_address);
  if (!does_both(v1::WORKER_ROLE_PREFILL)) told.set_decode_address(decision.answers_address);
  for (const DecisionCandidate& candidate : decision.candidates) {
    v1::DecisionCandidate& c = *told.add_candidates();
    c.set_address(candidate.address);
    c.set_role(candidate.role);
    c.set_cached_tokens(candidate.cached_tokens);
    c.set_tier_tokens(candidate.tier_tokens);
    c.set_queue_seconds(candidate.queue_seconds);
    c.set_service_seconds(candidate.service_seconds);
    c.set_transfer_seconds(candidate.transfer_seconds);
    c.set_cost(candidate.cost);
    c.set_excluded(std::string(candidate.excluded));
    c.set_pool(candidate.pool);
  }
  told.set_prefill_candidates(decision.prefill_candidates);
  told.set_decode_candidates(decision.decode_candidates);
  told.set_kappa(decision.kappa);
  told.set_predicted_cached_tokens(decision.predicted_cached_tokens);
  told.set_predicted_ttft_seconds(decision.predicted_ttft_seconds);
  told.set_kv_holder_address(decision.kv_holder_address);
  told.set_kv_holder_tokens(decision.kv_holder_tokens);
  told.set_pool(decision.pool);
  for (const v1::WorkerRole role : decision.spilled) told.add_spilled(role);
  return told;
}

std::string ToText(const Decision& decision) {
  std::string text = absl::StrFormat(
      "request %s of %d tokens: %s computes, %s answers: %s by %s, kappa %.3g, %d tokens cached, "
      "first token in %.3g s; of %d prefill and %d decode workers",
      decision.request_id, decision.prompt_tokens, decision.computes_address,
      decision.answers_address, decision.label, decision.policy, decision.kappa,
      decision.predicted_cached_tokens, decision.predicted_ttft_seconds,
      decision.prefill_candidates, decision.decode_candidates);
  if (!decision.kv_holder_address.empty()) {
    absl::StrAppend(&text, "; ", decision.kv_holder_tokens, " tokens may be fetched from ",
                    decision.kv_holder_address);
  }
  if (!decision.pool.empty()) absl::StrAppend(&text, "; pool ", decision.pool);
  for (const v1::WorkerRole role : decision.spilled) {
    absl::StrAppend(&text, "; spilled to another ", RoleName(role), " worker");
  }
  for (const DecisionCandidate& c : decision.candidates) {
    absl::StrAppendFormat(&text, "; %s %s cached %d Q %.3g T %.3g cost %.3g", RoleName(c.role),
                          c.address, c.cached_tokens, c.queue_seconds, c.service_seconds, c.cost);
    if (c.tier_tokens > 0) absl::StrAppend(&text, " tiers ", c.tier_tokens);
    if (c.transfer_seconds > 0) absl::StrAppendFormat(&text, " move %.3g", c.transfer_seconds);
    if (!c.excluded.empty()) absl::StrAppend(&text, " (", c.excluded, ")");
  }
  return text;
}

int64_t DecisionLog::Add(std::shared_ptr<const Decision> decision) {
  int64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = next_++;
    Entry entry;
    entry.decision = decision;
    if (ring_.size() < kCapacity) {
      ring_.push_back(std::move(entry));
    } else {
      std::swap(ring_[number % kCapacity], entry);  // the old one goes outside the lock
    }
  }
  if (log_every_ > 0 && number % log_every_ == 0) BATON_LOG(Info) << ToText(*decision);
  return number;
}

void DecisionLog::OnFirstToken(int64_t number, absl::Duration after, int cached_tokens) {
  std::shared_ptr<const Decision> decision;
  {
    absl::MutexLock lock(&mutex_);
    if (number < next_ - static_cast<int64_t>(ring_.size()) || number >= next_) return;
    Entry& entry = ring_[number % kCapacity];
    entry.first_token_after = after;
    entry.cached_tokens = cached_tokens;
    decision = entry.decision;
  }
  metrics_.Predicted(decision->predicted_cached_tokens, cached_tokens,
                     absl::Seconds(decision->predicted_ttft_seconds), after);
}

std::vector<v1::Decision> DecisionLog::Last(int max, const std::string& request_id) const {
  std::vector<Entry> found;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t oldest = next_ - static_cast<int64_t>(ring_.size());
    for (int64_t n = next_ - 1; n >= oldest && static_cast<int>(found.size()) < max; --n) {
      const Entry& entry = ring_[n % kCapacity];
      if (request_id.empty() || entry.decision->request_id == request_id) found.push_back(entry);
    }
  }
  std::vector<v1::Decision> last;
  for (const Entry& entry : found) {
    v1::Decision& told = last.emplace_back(ToProto(*entry.decision));
    if (!entry.first_token_after) continue;
    told.set_actual_cached_tokens(entry.cached_tokens);
    told.set_actual_ttft_seconds(absl::ToDoubleSeconds(*entry.first_token_after));
  }
  return last;
}

}  // namespace baton::router
