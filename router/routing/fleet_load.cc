#include "router/routing/fleet_load.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::router {
namespace {

// A report that leaves a worker may be this much older than a dispatch that it does not contain.
constexpr absl::Duration kReportDelay = absl::Milliseconds(50);
// No dispatch stays uncounted by its worker for longer than this.
constexpr absl::Duration kDispatchLife = absl::Seconds(5);
// The end of an answer that takes longer is seen by the next report.
constexpr absl::Duration kLongestTracked = absl::Minutes(5);
constexpr double kMostReportSeconds = 86'400;
// The other role's cost of prompts that stands in for a worker's own halves in this time, so often
// at the most.
constexpr double kStandInHalves_s = 10;
constexpr double kMostHalvings = 10;
// Workers report at least every second; one that has been silent for longer is no part of the load.
constexpr double kLoadLife_s = 3;
// As in MeasuredSteps.
constexpr double kMeasureHalves_s = 2;
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
  w.lends = identity.lends;
  w.prompt_cost.block_tokens = identity.block_tokens;
  w.token_pages = static_cast<double>(identity.block_pages) / std::max(identity.block_tokens, 1);
  w.kind = absl::StrCat(identity.model_fingerprint, "/", identity.device);
  PromptCosts(identity.role).Joins(worker, w.kind);
  if (identity.role == v1::WORKER_ROLE_DECODE) decode_steps_.Joins(worker, w.kind);
  Regroup(worker);
}

void FleetLoad::OnUnavailable(int worker) {
  workers_[worker].serves = workers_[worker].suspect = false;
  Regroup(worker);
}

void FleetLoad::OnSuspect(int worker) {
  workers_[worker].suspect = workers_[worker].serves;
  workers_[worker].serves = false;
  Regroup(worker);
}

void FleetLoad::Forget(int worker) {
  Leave(worker);
  workers_[worker] = Worker();
  dispatched_[worker].clear();
  for (CostEstimates* costs : {&prompts_on_prefill_, &prompts_on_decode_, &decode_steps_}) {
    costs->Forget(worker);
  }
}

void FleetLoad::Leave(int worker) {
  Worker& w = workers_[worker];
  if (w.group < 0) return;
  Group& group = groups_[w.group];
  CandidateTable& table = group.table;
  table.ForEachColumn([at = w.place](auto& column) { column.erase(column.begin() + at); });
  for (size_t i = w.place; i < table.workers.size(); ++i) --workers_[table.workers[i]].place;
  w.group = w.place = -1;
  PricePrompts(group);
}

// A group that all have left stays: there are few roles and models.
void FleetLoad::Regroup(int worker) {
  Leave(worker);
  Worker& w = workers_[worker];
  if (!w.serves && !w.suspect) return;
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&w](const Group& group) {
    return group.role == w.role && group.suspect == w.suspect &&
           group.model_fingerprint == w.model_fingerprint;
  });
  w.group = static_cast<int>(found - groups_.begin());
  if (found == groups_.end()) groups_.push_back({w.role, w.suspect, w.model_fingerprint, {}});
  CandidateTable& table = groups_[w.group].table;
  const auto behind = std::lower_bound(table.workers.begin(), table.workers.end(), worker);
  w.place = static_cast<int>(behind - table.workers.begin());
  for (auto other = behind; other != table.workers.end(); ++other) ++workers_[*other].place;
  table.ForEachColumn([at = w.place](auto& column) { column.emplace(column.begin() + at); });
  table.workers[w.place] = table.rows[w.place].worker = worker;
  RefreshRow(worker);
  PricePrompts(groups_[w.group]);
}

// The cost that most have is that of a majority vote, if there is one; any is right.
void FleetLoad::PricePrompts(Group& group) {
  CandidateTable& table = group.table;
  int votes = 0;
  for (const int worker : table.workers) {
    const CandidateTable::PromptCost& cost = workers_[worker].prompt_cost;
    if (votes == 0) table.usual = cost;
    votes += cost == table.usual ? 1 : -1;
  }
  table.unusual.clear();
  for (size_t i = 0; i < table.workers.size(); ++i) {
    const CandidateTable::PromptCost& cost = workers_[table.workers[i]].prompt_cost;
    if (cost != table.usual) table.unusual.emplace_back(static_cast<int>(i), cost);
  }
}

void FleetLoad::Refresh(int worker) {
  if (RefreshRow(worker)) PricePrompts(groups_[workers_[worker].group]);
}

void FleetLoad::RefreshAll() {
  for (size_t i = 0; i < workers_.size(); ++i) RefreshRow(static_cast<int>(i));
  for (Group& group : groups_) PricePrompts(group);
}

CostEstimates::Estimate FleetLoad::PromptEstimate(int worker) const {
  const Worker& w = workers_[worker];
  const bool decodes = w.role == v1::WORKER_ROLE_DECODE;
  const CostEstimates::Estimate& own =
      (decodes ? prompts_on_decode_ : prompts_on_prefill_).Of(worker);
  CostEstimates::Estimate stands_in =
      (decodes ? prompts_on_prefill_ : prompts_on_decode_).OfKind(w.kind);
  if (own.of_kind || (own.known && !stands_in.of_kind)) return own;
  if (w.stood_in_at_s) {
    const double untried_s = std::max(0.0, w.reported_at_s - *w.stood_in_at_s);
    const double halvings = std::min(untried_s / kStandInHalves_s, kMostHalvings);
    stands_in.cost = stands_in.cost * std::exp2(-halvings);
  }
  return stands_in;
}

bool FleetLoad::RefreshRow(int worker) {
  Worker& w = workers_[worker];
  if (w.group < 0) return false;
  CandidateTable& table = groups_[w.group].table;
  Candidate& c = table.rows[w.place];
  c.running = std::max(0, w.running - w.ended);
  c.queued = w.queued + w.sent;
  c.sent = w.sent;
  c.receiving = std::clamp(w.receiving - w.ended_receiving, 0, c.running) + w.sent_receiving;
  c.queued_tokens = w.queued_tokens + w.sent_tokens;
  const int free_blocks = std::min(w.free_blocks + w.ended_blocks, w.total_blocks);
  c.free_blocks = std::max(w.free_blocks, free_blocks) - w.sent_blocks;
  c.total_blocks = w.total_blocks;
  c.last_sent = w.last_sent;
  c.identity = table.identities[w.place] = w.identity;
  table.idle_at_s[w.place] = w.idle_at_s;
  table.reported_at_s[w.place] = w.reported_at_s;
  const CostEstimates::Estimate prefill = PromptEstimate(worker);
  c.cost_known = prefill.known;
  if (!prefill.known || PromptCosts(w.role).Of(worker).of_kind) {
    w.stood_in_at_s.reset();
  } else if (!w.stood_in_at_s && w.reported_at_s > 0) {
    w.stood_in_at_s = w.reported_at_s;
  }
  const bool changed = !(prefill.cost == w.prompt_cost.cost);
  w.prompt_cost.cost = prefill.cost;
  if (w.role != v1::WORKER_ROLE_DECODE) return changed;
  c.max_sequences = w.max_sequences;
  c.lends = w.lends;
  // What an answer has generated is in its context, too.
  const int64_t left =
      c.running == 0 ? 0 : std::max<int64_t>(0, w.context_tokens - w.ended_context_tokens);
  c.context_tokens = left + w.sent_context_tokens;
  c.step = decode_steps_.Of(worker).cost;
  return changed;
}

void FleetLoad::OnReport(int worker, const internal::v1::LoadReport& report, absl::Duration now) {
  Worker& w = workers_[worker];
  const double now_s = absl::ToDoubleSeconds(now);
  w.running = std::clamp(report.running(), 0, kMostCounted);
  w.queued = std::clamp(report.queued(), 0, kMostCounted);
  w.receiving = std::clamp(report.receiving(), 0, kMostCounted);
  w.queued_tokens = std::clamp<int64_t>(report.queued_tokens(), 0, kMostTokens);
  w.free_blocks = std::clamp(report.free_blocks(), 0, kMostCounted);
  w.context_tokens = std::clamp<int64_t>(report.context_tokens(), 0, kMostTokens);
  w.reported_at_s = now_s;
  const double age_s = SecondsOfReport(static_cast<double>(report.age_us()));
  const double steps_s = report.prefill_cost().measured().seconds();
  w.prompt_steps_s = std::isfinite(steps_s) ? std::clamp(steps_s, 0.0, kMostReportSeconds) : 0;
  bool first = false;
  if (report.has_prefill_cost() && w.role != v1::WORKER_ROLE_UNSPECIFIED) {
    first = !PromptCosts(w.role).Of(worker).known;
    PromptCosts(w.role).OnReport(worker, ReportOf(report.prefill_cost(), now_s - age_s), now_s);
  }
  if (report.has_decode_cost()) {
    first = first || !decode_steps_.Of(worker).known;
    decode_steps_.OnReport(worker, ReportOf(report.decode_cost(), now_s - age_s), now_s);
  }
  // What the first of a kind reports holds for all of it.
  if (first) RefreshAll();
  const double accepted_age_s = SecondsOfReport(static_cast<double>(report.accepted_age_us()));
  w.may_contain = now - absl::Seconds(std::max(age_s, accepted_age_s));
  CountAsReported(worker, w.may_contain - kReportDelay);
  DropEnded(worker, now - absl::Seconds(age_s));
  w.reported_idle_at_s =
      now_s - age_s + SecondsOfReport(static_cast<double>(report.remaining_work_us()));
  SetIdleAt(worker, w.reported_idle_at_s);
  Refresh(worker);
}

void FleetLoad::CountAsReported(int worker, absl::Duration sent_by) {
  for (Dispatch& dispatch : dispatched_[worker]) {
    if (dispatch.at > sent_by) break;
    if (!dispatch.reported) Uncount(workers_[worker], dispatch);
    dispatch.reported = true;
  }
}

void FleetLoad::DropEnded(int worker, absl::Duration shown_at) {
  Worker& w = workers_[worker];
  w.ended = w.ended_receiving = w.ended_blocks = 0;
  w.ended_context_tokens = 0;
  std::erase_if(dispatched_[worker], [&w, shown_at](const Dispatch& dispatch) {
    if (!dispatch.done_at) return dispatch.reported && dispatch.at < shown_at - kLongestTracked;
    if (*dispatch.done_at <= shown_at) return true;
    CountEnded(w, dispatch);
    return false;
  });
}

void FleetLoad::CountEnded(Worker& w, const Dispatch& dispatch) {
  if (dispatch.at >= w.may_contain) return;
  ++w.ended;
  w.ended_receiving += dispatch.sent.receives ? 1 : 0;
  w.ended_blocks += dispatch.sent.blocks;
  w.ended_context_tokens += dispatch.sent.context_tokens;
}

int FleetLoad::PlacesOf(const Worker& w, const Sent& sent) {
  return w.role != v1::WORKER_ROLE_DECODE || sent.context_tokens > 0 ? 1 : 0;
}

void FleetLoad::Uncount(Worker& w, const Dispatch& dispatch) {
  w.sent -= dispatch.places;
  w.sent_receiving -= dispatch.sent.receives ? 1 : 0;
  w.sent_blocks -= dispatch.sent.blocks;
  w.sent_tokens -= dispatch.sent.tokens;
  w.sent_context_tokens -= dispatch.sent.context_tokens;
}

FleetLoad::Dispatches::iterator FleetLoad::Find(int worker, int64_t dispatch) {
  Dispatches& dispatched = dispatched_[worker];
  const auto found =
      std::lower_bound(dispatched.begin(), dispatched.end(), dispatch,
                       [](const Dispatch& d, int64_t number) { return d.number < number; });
  return found == dispatched.end() || found->number != dispatch ? dispatched.end() : found;
}

void FleetLoad::SetIdleAt(int worker, double reported_s) {
  double& idle_at_s = workers_[worker].idle_at_s;
  idle_at_s = reported_s;
  for (const Dispatch& d : dispatched_[worker]) idle_at_s += d.reported ? 0 : d.sent.seconds;
}

void FleetLoad::OnComputed(int worker, int64_t dispatch, absl::Duration now) {
  if (worker < 0 || worker >= static_cast<int>(workers_.size())) return;
  const auto found = Find(worker, dispatch);
  if (found == dispatched_[worker].end()) return;
  if (found->sent.context_tokens == 0) return OnDone(worker, dispatch, now);
  Worker& w = workers_[worker];
  const bool received = std::exchange(found->sent.receives, false);
  if (found->reported) return;
  w.sent_receiving -= received ? 1 : 0;
  w.sent_tokens -= std::exchange(found->sent.tokens, 0);
  found->sent.seconds = 0;
  SetIdleAt(worker, std::max(w.reported_idle_at_s, absl::ToDoubleSeconds(now)));
  Refresh(worker);
}

void FleetLoad::OnDone(int worker, int64_t dispatch, absl::Duration now) {
  if (worker < 0 || worker >= static_cast<int>(workers_.size())) return;
  const auto found = Find(worker, dispatch);
  if (found == dispatched_[worker].end() || found->done_at) return;
  Worker& w = workers_[worker];
  const bool reported = found->reported;
  if (!reported) Uncount(w, *found);
  if (found->sent.context_tokens > 0) {
    // The last report may contain the dispatch, and so may one that is on its way.
    found->reported = true;
    found->done_at = now;
    CountEnded(w, *found);
  } else {
    // A worker reports prompts that others answer as a time, which passes by itself.
    dispatched_[worker].erase(found);
  }
  if (!reported) {
    SetIdleAt(worker, std::max(w.reported_idle_at_s, absl::ToDoubleSeconds(now)));
  }
  Refresh(worker);
}

int64_t FleetLoad::OnDispatch(int worker, absl::Duration now, const Sent& sent) {
  Worker& w = workers_[worker];
  dispatched_[worker].push_back({++last_dispatch_, now, sent});
  w.last_sent = last_dispatch_;
  const int places = PlacesOf(w, sent);
  dispatched_[worker].back().places = places;
  w.sent += places;
  w.sent_receiving += sent.receives ? 1 : 0;
  w.sent_blocks += sent.blocks;
  w.sent_tokens += sent.tokens;
  w.sent_context_tokens += sent.context_tokens;
  const double now_s = absl::ToDoubleSeconds(now);
  w.idle_at_s = std::max(w.idle_at_s, now_s) + sent.seconds;
  // Only a prompt that is computed there shows what prompts cost.
  if (sent.seconds > 0 || w.role != v1::WORKER_ROLE_DECODE) {
    PromptCosts(w.role).OnDispatch(worker, now_s);
    if (w.stood_in_at_s) w.stood_in_at_s = now_s;
  }
  if (w.role == v1::WORKER_ROLE_DECODE) decode_steps_.OnDispatch(worker, now_s);
  Refresh(worker);
  return last_dispatch_;
}

void FleetLoad::Tick(absl::Duration now) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    CountAsReported(static_cast<int>(i), now - kDispatchLife);
    DropEnded(static_cast<int>(i), now - kDispatchLife);
  }
  const double now_s = absl::ToDoubleSeconds(now);
  for (CostEstimates* costs : {&prompts_on_prefill_, &prompts_on_decode_, &decode_steps_}) {
    costs->Tick(now_s);
  }
  RefreshAll();
}

std::optional<LinearCost> FleetLoad::PrefillCost(int worker) const {
  const CostEstimates::Estimate estimate = PromptEstimate(worker);
  return estimate.known ? std::optional(estimate.cost) : std::nullopt;
}

void FleetLoad::Collect(const Query& query, absl::Duration now, Candidates* found) const {
  const auto group = std::find_if(groups_.begin(), groups_.end(), [&query](const Group& g) {
    return g.role == query.role && g.suspect == query.suspect &&
           g.model_fingerprint == query.model_fingerprint;
  });
  if (group == groups_.end()) {
    *found = Candidates();
    return;
  }
  found->Fill(group->table, query.prompt_tokens, query.matched_blocks, absl::ToDoubleSeconds(now));
}

void FleetLoad::ListLoads(absl::Duration now, std::vector<LoadOfWorker>* loads) const {
  loads->clear();
  const double now_s = absl::ToDoubleSeconds(now);
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    const double silence_s = now_s - w.reported_at_s;
    if (w.reported_at_s == 0 || silence_s > kLoadLife_s) continue;
    LoadOfWorker& load = loads->emplace_back();
    load.role = w.role;
    load.ready = w.serves;
    load.backlog_s = std::max(0.0, w.idle_at_s - now_s);
    // A worker that is always busy has a sum of kMeasureHalves_s / ln 2.
    load.busy = w.prompt_steps_s * std::exp2(-silence_s / kMeasureHalves_s) * std::numbers::ln2 /
                kMeasureHalves_s;
    load.total_blocks = w.total_blocks;
    load.used_blocks = std::max(0, w.total_blocks - w.free_blocks);
    load.token_pages = w.token_pages;
    load.max_sequences = w.max_sequences;
    load.running = w.running;
    load.queued = w.queued;
    load.context_tokens = w.context_tokens;
    load.queued_tokens = w.queued_tokens;
    if (w.role == v1::WORKER_ROLE_DECODE) load.step = decode_steps_.Of(static_cast<int>(i)).cost;
    if (w.group < 0) continue;
    const Candidate& c = groups_[w.group].table.rows[w.place];
    load.running = c.running;
    load.queued = c.queued;
    load.context_tokens = c.context_tokens;
    // The blocks of what was sent are among the used ones.
    load.used_blocks = std::max(0, w.total_blocks - c.free_blocks);
  }
}

}  // namespace baton::router
