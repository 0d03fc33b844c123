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
  w.role = static_cast<uint8_t>(identity.role);
  w.model_fingerprint = identity.model_fingerprint;
  w.identity = identity.hash;
  w.total_blocks = identity.total_blocks;
  w.block_tokens = identity.block_tokens;
}

void FleetLoad::Rests(int worker) { workers_[worker].serves = false; }

void FleetLoad::Forget(int worker) {
  workers_[worker] = Worker();
  dispatched_[worker].clear();
}

double FleetLoad::Backlog(const Worker& w, double now_s) {
  return std::max(0.0, w.backlog_s - std::max(0.0, now_s - w.backlog_at_s));
}

void FleetLoad::OnReport(int worker, const internal::v1::LoadReport& report, absl::Duration now) {
  Worker& w = workers_[worker];
  const double now_s = absl::ToDoubleSeconds(now);
  w.running = std::max(0, report.running());
  w.queued = std::max(0, report.queued());
  w.queued_tokens = std::max<int64_t>(0, report.queued_tokens());
  w.free_blocks = std::max(0, report.free_blocks());
  w.reported_at_s = now_s;
  w.backlog_s = FromMicros(static_cast<double>(report.remaining_work_us()));
  w.backlog_at_s = now_s;
  if (report.has_prefill_cost()) {
    const internal::v1::PrefillCost& cost = report.prefill_cost();
    w.cost = {FromMicros(cost.fixed_us()), FromMicros(cost.token_us()), FromMicros(cost.pair_us())};
    // One that takes no time is none.
    const bool first = !w.own_cost;
    w.own_cost = w.cost.fixed_s + w.cost.token_s + w.cost.pair_s > 0;
    if (first && w.own_cost) RefreshMeans();
  }
  if (report.decode_step_us() > 0 && report.decode_context_tokens() >= 0) {
    w.step.Add(static_cast<double>(report.decode_context_tokens()),
               FromMicros(static_cast<double>(report.decode_step_us())));
  }
  DropCounted(worker, now - kReportFlight);
  for (const Dispatch& dispatch : dispatched_[worker]) w.backlog_s += dispatch.seconds;
}

void FleetLoad::DropCounted(int worker, absl::Duration before) {
  Worker& w = workers_[worker];
  std::deque<Dispatch>& dispatched = dispatched_[worker];
  while (!dispatched.empty() && dispatched.front().at <= before) {
    --w.sent;
    w.sent_blocks -= dispatched.front().blocks;
    w.sent_tokens -= dispatched.front().tokens;
    dispatched.pop_front();
  }
}

void FleetLoad::OnDispatch(int worker, absl::Duration now, int64_t tokens, double seconds,
                           int blocks) {
  Worker& w = workers_[worker];
  const double now_s = absl::ToDoubleSeconds(now);
  dispatched_[worker].push_back({now, seconds, static_cast<int>(tokens), blocks});
  ++w.sent;
  w.sent_blocks += blocks;
  w.sent_tokens += tokens;
  w.backlog_s = Backlog(w, now_s) + seconds;
  w.backlog_at_s = now_s;
}

void FleetLoad::Tick(absl::Duration now) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    DropCounted(static_cast<int>(i), now - kDispatchLife);
  }
  RefreshMeans();
}

void FleetLoad::RefreshMeans() {
  for (const int role : {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}) {
    PrefillCost sum = {0, 0, 0};
    int count = 0;
    for (const Worker& w : workers_) {
      if (w.role != role || !w.own_cost) continue;
      sum.fixed_s += w.cost.fixed_s;
      sum.token_s += w.cost.token_s;
      sum.pair_s += w.cost.pair_s;
      ++count;
    }
    MeanCost& mean = means_[role == v1::WORKER_ROLE_DECODE ? 1 : 0];
    mean = MeanCost();
    if (count == 0) continue;
    mean.known = true;
    mean.cost = {sum.fixed_s / count, sum.token_s / count, sum.pair_s / count};
  }
}

double FleetLoad::ServiceSeconds(int worker, double tokens, double cached) const {
  const Worker& w = workers_[worker];
  return (w.own_cost ? w.cost : MeanOf(w.role).cost).Seconds(tokens, cached);
}

void FleetLoad::Collect(const Query& query, absl::Duration now,
                        std::vector<Candidate>* candidates) const {
  const double now_s = absl::ToDoubleSeconds(now);
  const MeanCost& mean = MeanOf(query.role);
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (!w.serves || w.role != query.role || w.model_fingerprint != query.model_fingerprint) {
      continue;
    }
    Candidate& c = candidates->emplace_back();
    c.worker = static_cast<int>(i);
    c.matched_blocks = i < query.matched_blocks.size() ? query.matched_blocks[i] : 0;
    c.running = w.running;
    c.queued = w.queued + w.sent;
    c.queued_tokens = w.queued_tokens + w.sent_tokens;
    c.free_blocks = w.free_blocks - w.sent_blocks;
    c.total_blocks = w.total_blocks;
    c.queue_s = Backlog(w, now_s);
    // The last token is always computed.
    const double cached =
        std::min(double(c.matched_blocks) * w.block_tokens, query.prompt_tokens - 1.0);
    c.service_s = (w.own_cost ? w.cost : mean.cost).Seconds(query.prompt_tokens - cached, cached);
    c.cost_known = w.own_cost || mean.known;
    c.silence_s = now_s - w.reported_at_s;
    c.identity = w.identity;
    if (query.role == v1::WORKER_ROLE_DECODE) {
      const int used = std::max(0, w.total_blocks - c.free_blocks);
      c.step_s = w.step.Seconds(double(used) * w.block_tokens + query.prompt_tokens);
    }
  }
}

}  // namespace baton::router
