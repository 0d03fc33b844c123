#include "router/routing/fleet_load.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::router {
namespace {

// A report that leaves a worker may be this much older than a dispatch that it does not contain.
constexpr absl::Duration kReportDelay = absl::Milliseconds(50);
// No dispatch stays uncounted by its worker for longer than this.
constexpr absl::Duration kDispatchLife = absl::Seconds(5);
constexpr double kMostReportSeconds = 86'400;
// Sums of a few of these stay within their types.
constexpr int kMostCounted = 1 << 24;
constexpr int64_t kMostTokens = int64_t{1} << 40;

double SecondsOfReport(double micros) {
  return std::isfinite(micros) ? std::clamp(micros * 1e-6, 0.0, kMostReportSeconds) : 0;
}

}  // namespace

void FleetLoad::Grow(int worker_count) {
  if (worker_count <= static_cast<int>(workers_.size())) return;
  workers_.resize(worker_count);
  dispatched_.resize(worker_count);
  for (CostEstimates* costs : {&prompts_on_prefill_, &prompts_on_decode_, &decode_steps_}) {
    costs->Grow(worker_count);
  }
}

void FleetLoad::OnReady(int worker, const Identity& identity) {
  Worker& w = workers_[worker];
  w.serves = true;
  w.suspect = false;
  w.role = identity.role;
  w.model_fingerprint = identity.model_fingerprint;
  w.identity = identity.hash;
  w.total_blocks = identity.total_blocks;
  w.max_sequences = identity.max_sequences;
  w.hot.block_tokens = identity.block_tokens;
  const std::string kind = absl::StrCat(identity.model_fingerprint, "/", identity.device);
  PromptCosts(identity.role).Joins(worker, kind);
  if (identity.role == v1::WORKER_ROLE_DECODE) decode_steps_.Joins(worker, kind);
  regroup_ = true;
}

void FleetLoad::OnUnavailable(int worker) {
  workers_[worker].serves = workers_[worker].suspect = false;
  regroup_ = true;
}

void FleetLoad::OnSuspect(int worker) {
  workers_[worker].suspect = workers_[worker].serves;
  workers_[worker].serves = false;
  regroup_ = true;
}

void FleetLoad::Forget(int worker) {
  workers_[worker] = Worker();
  dispatched_[worker].clear();
  for (CostEstimates* costs : {&prompts_on_prefill_, &prompts_on_decode_, &decode_steps_}) {
    costs->Forget(worker);
  }
  regroup_ = true;
}

void FleetLoad::Regroup() {
  regroup_ = false;
  groups_.clear();
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    w.group = -1;
    if (!w.serves && !w.suspect) continue;
    const auto found = std::find_if(groups_.begin(), groups_.end(), [&w](const Group& group) {
      return group.role == w.role && group.suspect == w.suspect &&
             group.model_fingerprint == w.model_fingerprint;
    });
    w.group = static_cast<int>(found - groups_.begin());
    if (found == groups_.end()) groups_.push_back({w.role, w.suspect, w.model_fingerprint, {}, {}});
    Group& group = groups_[w.group];
    w.place = static_cast<int>(group.candidates.size());
    group.candidates.emplace_back().worker = static_cast<int>(i);
    group.hot.emplace_back();
    Refresh(static_cast<int>(i));
  }
}

void FleetLoad::Refresh(int worker) {
  const Worker& w = workers_[worker];
  if (regroup_ || w.group < 0) return;
  Candidate& c = groups_[w.group].candidates[w.place];
  c.running = w.running;
  c.queued = w.queued + w.sent;
  c.sent = w.sent;
  c.queued_tokens = w.queued_tokens + w.sent_tokens;
  c.free_blocks = w.free_blocks - w.sent_blocks;
  c.total_blocks = w.total_blocks;
  c.identity = w.identity;
  Hot& hot = groups_[w.group].hot[w.place];
  hot = w.hot;
  const CostEstimates::Estimate& prefill = PromptCosts(w.role).Of(worker);
  c.cost_known = prefill.known;
  hot.prefill_cost = prefill.cost;
  if (w.role != v1::WORKER_ROLE_DECODE) return;
  c.max_sequences = w.max_sequences;
  c.context_tokens = w.context_tokens + w.sent_context_tokens;
  c.step = decode_steps_.Of(worker).cost;
}

void FleetLoad::OnReport(int worker, const internal::v1::LoadReport& report, absl::Duration now) {
  Worker& w = workers_[worker];
  const double now_s = absl::ToDoubleSeconds(now);
  w.running = std::clamp(report.running(), 0, kMostCounted);
  w.queued = std::clamp(report.queued(), 0, kMostCounted);
  w.queued_tokens = std::clamp<int64_t>(report.queued_tokens(), 0, kMostTokens);
  w.free_blocks = std::clamp(report.free_blocks(), 0, kMostCounted);
  w.context_tokens = std::clamp<int64_t>(report.context_tokens(), 0, kMostTokens);
  w.hot.reported_at_s = now_s;
  const double age_s = SecondsOfReport(static_cast<double>(report.age_us()));
  bool first = false;
  if (report.has_prefill_cost() && w.role != v1::WORKER_ROLE_UNSPECIFIED) {
    first = !PromptCosts(w.role).Of(worker).known;
    PromptCosts(w.role).OnReport(worker, ReportOf(report.prefill_cost(), now_s - age_s));
  }
  if (report.has_decode_cost()) {
    first = first || !decode_steps_.Of(worker).known;
    decode_steps_.OnReport(worker, ReportOf(report.decode_cost(), now_s - age_s));
  }
  // What the first of a kind reports holds for all of it.
  if (first) RefreshAll();
  const double accepted_age_s = SecondsOfReport(static_cast<double>(report.accepted_age_us()));
  DropCounted(worker, now - absl::Seconds(std::max(age_s, accepted_age_s)) - kReportDelay);
  w.reported_idle_at_s =
      now_s - age_s + SecondsOfReport(static_cast<double>(report.remaining_work_us()));
  w.hot.idle_at_s = w.reported_idle_at_s;
  for (const Dispatch& dispatch : dispatched_[worker]) w.hot.idle_at_s += dispatch.sent.seconds;
  Refresh(worker);
}

void FleetLoad::DropCounted(int worker, absl::Duration before) {
  Worker& w = workers_[worker];
  std::deque<Dispatch>& dispatched = dispatched_[worker];
  while (!dispatched.empty() && dispatched.front().at <= before) {
    Uncount(w, dispatched.front());
    dispatched.pop_front();
  }
}

void FleetLoad::Uncount(Worker& w, const Dispatch& dispatch) {
  --w.sent;
  w.sent_blocks -= dispatch.sent.blocks;
  w.sent_tokens -= dispatch.sent.tokens;
  w.sent_context_tokens -= dispatch.sent.context_tokens;
}

void FleetLoad::OnDone(int worker, int64_t dispatch, absl::Duration now) {
  if (worker < 0 || worker >= static_cast<int>(workers_.size())) return;
  Worker& w = workers_[worker];
  std::deque<Dispatch>& dispatched = dispatched_[worker];
  const auto found =
      std::lower_bound(dispatched.begin(), dispatched.end(), dispatch,
                       [](const Dispatch& d, int64_t number) { return d.number < number; });
  if (found == dispatched.end() || found->number != dispatch) return;  // a report has it
  Uncount(w, *found);
  dispatched.erase(found);
  w.hot.idle_at_s = std::max(w.reported_idle_at_s, absl::ToDoubleSeconds(now));
  for (const Dispatch& left : dispatched) w.hot.idle_at_s += left.sent.seconds;
  Refresh(worker);
}

int64_t FleetLoad::OnDispatch(int worker, absl::Duration now, const Sent& sent) {
  Worker& w = workers_[worker];
  dispatched_[worker].push_back({++last_dispatch_, now, sent});
  ++w.sent;
  w.sent_blocks += sent.blocks;
  w.sent_tokens += sent.tokens;
  w.sent_context_tokens += sent.context_tokens;
  const double now_s = absl::ToDoubleSeconds(now);
  w.hot.idle_at_s = std::max(w.hot.idle_at_s, now_s) + sent.seconds;
  PromptCosts(w.role).OnDispatch(worker, now_s);
  decode_steps_.OnDispatch(worker, now_s);
  Refresh(worker);
  return last_dispatch_;
}

void FleetLoad::Tick(absl::Duration now) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    DropCounted(static_cast<int>(i), now - kDispatchLife);
  }
  const double now_s = absl::ToDoubleSeconds(now);
  for (CostEstimates* costs : {&prompts_on_prefill_, &prompts_on_decode_, &decode_steps_}) {
    costs->Tick(now_s);
  }
  RefreshAll();
}

std::optional<LinearCost> FleetLoad::PrefillCost(int worker) const {
  const CostEstimates& costs =
      workers_[worker].role == v1::WORKER_ROLE_DECODE ? prompts_on_decode_ : prompts_on_prefill_;
  const CostEstimates::Estimate& estimate = costs.Of(worker);
  return estimate.known ? std::optional(estimate.cost) : std::nullopt;
}

void FleetLoad::RefreshAll() {
  for (size_t i = 0; i < workers_.size(); ++i) Refresh(static_cast<int>(i));
}

absl::Span<const Candidate> FleetLoad::Collect(const Query& query, absl::Duration now) {
  if (regroup_) Regroup();
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&query](const Group& group) {
    return group.role == query.role && group.suspect == query.suspect &&
           group.model_fingerprint == query.model_fingerprint;
  });
  if (found == groups_.end()) return {};
  const double now_s = absl::ToDoubleSeconds(now);
  const double most_cached = query.prompt_tokens - 1.0;  // the last token is always computed
  const int matched_end = static_cast<int>(query.matched_blocks.size());
  const int* matched = query.matched_blocks.data();
  Candidate* c = found->candidates.data();
  for (const Hot& hot : found->hot) {
    c->matched_blocks = c->worker < matched_end ? matched[c->worker] : 0;
    c->queue_s = std::max(0.0, hot.idle_at_s - now_s);
    const double cached = std::min(c->matched_blocks * hot.block_tokens, most_cached);
    c->service_s = hot.prefill_cost.Prefill(query.prompt_tokens - cached, cached);
    c->silence_s = now_s - hot.reported_at_s;
    ++c;
  }
  return found->candidates;
}

}  // namespace baton::router
