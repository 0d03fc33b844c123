#include "router/fleet_load.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace baton::router {
namespace {

// A report that leaves a worker may be this much older than a dispatch that it does not contain.
constexpr absl::Duration kReportFlight = absl::Milliseconds(50);
// No dispatch stays uncounted by its worker for longer than this.
constexpr absl::Duration kDispatchLife = absl::Seconds(5);
constexpr double kMostSeconds = 86'400;
// Sums of a few of these stay within their types.
constexpr int kMostCounted = 1 << 24;
constexpr int64_t kMostTokens = int64_t{1} << 40;
// Machines of different kinds differ by more than this; fits of equal ones, by less.
constexpr double kOfOneKind = 1.75;

// What costs are compared by: a middling prompt, nothing of it cached.
double Middling(const PrefillCost& cost) { return cost.Seconds(512, 0); }

double FromMicros(double micros) {
  return std::isfinite(micros) ? std::clamp(micros * 1e-6, 0.0, kMostSeconds) : 0;
}

}  // namespace

void FleetLoad::Grow(int worker_count) {
  if (worker_count <= static_cast<int>(workers_.size())) return;
  workers_.resize(worker_count);
  dispatched_.resize(worker_count);
}

void FleetLoad::Serves(int worker, const Identity& identity) {
  Worker& w = workers_[worker];
  w.serves = true;
  w.doubted = false;
  w.role = identity.role;
  w.model_fingerprint = identity.model_fingerprint;
  w.identity = identity.hash;
  w.total_blocks = identity.total_blocks;
  w.hot.block_tokens = identity.block_tokens;
  regroup_ = true;
}

void FleetLoad::Rests(int worker) {
  workers_[worker].serves = workers_[worker].doubted = false;
  regroup_ = true;
}

void FleetLoad::Doubt(int worker) {
  workers_[worker].doubted = workers_[worker].serves;
  workers_[worker].serves = false;
  regroup_ = true;
}

void FleetLoad::Forget(int worker) {
  workers_[worker] = Worker();
  dispatched_[worker].clear();
  regroup_ = true;
}

void FleetLoad::Regroup() {
  regroup_ = false;
  groups_.clear();
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    w.group = -1;
    if (!w.serves && !w.doubted) continue;
    const auto found = std::find_if(groups_.begin(), groups_.end(), [&w](const Group& group) {
      return group.role == w.role && group.doubted == w.doubted &&
             group.model_fingerprint == w.model_fingerprint;
    });
    w.group = static_cast<int>(found - groups_.begin());
    if (found == groups_.end()) groups_.push_back({w.role, w.doubted, w.model_fingerprint, {}, {}});
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
  c.cost_known = w.own_cost || MeanOf(w.role).known;
  c.identity = w.identity;
  Hot& hot = groups_[w.group].hot[w.place];
  hot = w.hot;
  if (!w.stands_out) hot.cost = MeanOf(w.role).cost;
}

void FleetLoad::OnReport(int worker, const internal::v1::LoadReport& report, absl::Duration now) {
  Worker& w = workers_[worker];
  const double now_s = absl::ToDoubleSeconds(now);
  w.running = std::clamp(report.running(), 0, kMostCounted);
  w.queued = std::clamp(report.queued(), 0, kMostCounted);
  w.queued_tokens = std::clamp<int64_t>(report.queued_tokens(), 0, kMostTokens);
  w.free_blocks = std::clamp(report.free_blocks(), 0, kMostCounted);
  w.hot.reported_at_s = now_s;
  if (report.has_prefill_cost()) {
    const internal::v1::PrefillCost& cost = report.prefill_cost();
    PrefillCost& own = w.hot.cost;
    own = {FromMicros(cost.fixed_us()), FromMicros(cost.token_us()), FromMicros(cost.pair_us())};
    // One that takes no time is none.
    const bool first = !w.own_cost;
    w.own_cost = own.fixed_s + own.token_s + own.pair_s > 0;
    w.stands_out = w.stands_out && w.own_cost;
    if (first && w.own_cost) RefreshMeans();
  }
  // A worker that does nothing says the same again and again: that is no news.
  const bool step_is_new = report.decode_step_us() != w.told_step_us ||
                           report.decode_context_tokens() != w.told_context_tokens;
  if (step_is_new && report.decode_step_us() > 0 && report.decode_context_tokens() >= 0) {
    w.told_step_us = report.decode_step_us();
    w.told_context_tokens = report.decode_context_tokens();
    w.step.Add(static_cast<double>(report.decode_context_tokens()),
               FromMicros(static_cast<double>(report.decode_step_us())));
  }
  const double age_s = FromMicros(static_cast<double>(report.age_us()));
  const double intake_age_s = FromMicros(static_cast<double>(report.intake_age_us()));
  DropCounted(worker, now - absl::Seconds(std::max(age_s, intake_age_s)) - kReportFlight);
  w.told_idle_at_s = now_s - age_s + FromMicros(static_cast<double>(report.remaining_work_us()));
  w.hot.idle_at_s = w.told_idle_at_s;
  for (const Dispatch& dispatch : dispatched_[worker]) w.hot.idle_at_s += dispatch.seconds;
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
  w.sent_blocks -= dispatch.blocks;
  w.sent_tokens -= dispatch.tokens;
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
  w.hot.idle_at_s = std::max(w.told_idle_at_s, absl::ToDoubleSeconds(now));
  for (const Dispatch& left : dispatched) w.hot.idle_at_s += left.seconds;
  Refresh(worker);
}

int64_t FleetLoad::OnDispatch(int worker, absl::Duration now, int64_t tokens, double seconds,
                              int blocks) {
  Worker& w = workers_[worker];
  dispatched_[worker].push_back({++last_dispatch_, now, seconds, static_cast<int>(tokens), blocks});
  ++w.sent;
  w.sent_blocks += blocks;
  w.sent_tokens += tokens;
  w.hot.idle_at_s = std::max(w.hot.idle_at_s, absl::ToDoubleSeconds(now)) + seconds;
  Refresh(worker);
  return last_dispatch_;
}

void FleetLoad::Tick(absl::Duration now) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    DropCounted(static_cast<int>(i), now - kDispatchLife);
  }
  RefreshMeans();
}

void FleetLoad::RefreshMeans() {
  std::vector<double> told;
  for (const auto role : {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}) {
    told.clear();
    for (const Worker& w : workers_) {
      if (w.role == role && w.own_cost) told.push_back(Middling(w.hot.cost));
    }
    MeanCost& mean = means_[role == v1::WORKER_ROLE_DECODE ? 1 : 0];
    mean = MeanCost();
    if (told.empty()) continue;
    const auto middle = told.begin() + (told.size() - 1) / 2;
    std::nth_element(told.begin(), middle, told.end());
    PrefillCost sum = {0, 0, 0};
    int count = 0;
    for (Worker& w : workers_) {
      if (w.role != role || !w.own_cost) continue;
      const double ratio = Middling(w.hot.cost) / *middle;
      w.stands_out = ratio > kOfOneKind || ratio < 1 / kOfOneKind;
      if (w.stands_out) continue;
      sum.fixed_s += w.hot.cost.fixed_s;
      sum.token_s += w.hot.cost.token_s;
      sum.pair_s += w.hot.cost.pair_s;
      ++count;
    }
    mean.known = true;
    mean.cost = {sum.fixed_s / count, sum.token_s / count, sum.pair_s / count};
  }
  for (size_t i = 0; i < workers_.size(); ++i) Refresh(static_cast<int>(i));
}

absl::Span<const Candidate> FleetLoad::Collect(const Query& query, absl::Duration now) {
  if (regroup_) Regroup();
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&query](const Group& group) {
    return group.role == query.role && group.doubted == query.doubted &&
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
    c->service_s = hot.cost.Seconds(query.prompt_tokens - cached, cached);
    c->silence_s = now_s - hot.reported_at_s;
    ++c;
  }
  if (query.role == v1::WORKER_ROLE_DECODE) {
    for (Candidate& d : found->candidates) {
      const Worker& w = workers_[d.worker];
      const int used = std::max(0, w.total_blocks - d.free_blocks);
      d.step_s = w.step.Seconds(used * w.hot.block_tokens + query.prompt_tokens);
    }
  }
  return found->candidates;
}

}  // namespace baton::router
