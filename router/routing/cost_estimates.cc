#include "router/routing/cost_estimates.h"

#include <algorithm>
#include <cmath>

namespace baton::router {
namespace {

// Evidence of a worker's pace halves in this time, as at the worker itself
// (common/worker/step_cost.h).
constexpr double kHalfLife_s = 2;
// The pool counts like so many steps beside what was measured, and no worker's measurement counts
// more than the most: a worker with steps of a millisecond is not believed for longer.
constexpr double kPoolSteps = 8;
constexpr double kMostSteps = 32;
// Paces of machines of different speed differ by more than the first, measurements of equal ones by
// less. A worker that stood out does so until it is nearer than the second.
constexpr double kStandsOut = 1.6;
constexpr double kIsAlike = 1.3;
// How often a slow worker of which nothing is measured any more gets a request to show its pace.
constexpr double kTryEvery_s = 2;
// The same for a worker that is still measured, by what it has left to do.
constexpr double kTryMeasuredEvery_s = 10;
constexpr double kMostSeconds = 86'400;
constexpr double kFewestSteps = 1e-3;
constexpr int kMostExperts = 1 << 16;

bool Differs(double pace, double factor) { return pace > factor || pace < 1 / factor; }

double Sane(double value, double most) {
  return std::isfinite(value) ? std::clamp(value, 0.0, most) : 0;
}

double FromMicros(double micros) { return Sane(micros * 1e-6, kMostSeconds); }

CostEstimates::Report Checked(const internal::v1::MeasuredSteps& measured, double fitted_steps,
                              double at_s) {
  CostEstimates::Report report;
  report.fitted_steps = Sane(fitted_steps, 1e6);
  report.steps = Sane(measured.steps(), 1e9);
  // Sums that have faded away: their means would be noise, or no numbers at all.
  if (report.steps < kFewestSteps) report.steps = 0;
  report.seconds = Sane(measured.seconds(), kMostSeconds);
  report.at_s = at_s;
  return report;
}

}  // namespace

CostEstimates::Report ReportOf(const internal::v1::PrefillCost& cost, double at_s) {
  CostEstimates::Report report = Checked(cost.measured(), cost.fitted_steps(), at_s);
  report.fit = {FromMicros(cost.fixed_us()), FromMicros(cost.token_us()),
                FromMicros(cost.pair_us())};
  report.first = Sane(cost.measured().prompt_tokens(), 1e15);
  report.second = Sane(cost.measured().pairs(), 1e18);
  return report;
}

CostEstimates::Report ReportOf(const internal::v1::DecodeCost& cost, double at_s) {
  CostEstimates::Report report = Checked(cost.measured(), cost.fitted_steps(), at_s);
  report.fit = {FromMicros(cost.fixed_us()), FromMicros(cost.sequence_us()),
                FromMicros(cost.context_token_us())};
  ExpertChoice& choice = report.fit.choice;
  choice.experts = std::clamp(cost.experts(), 0, kMostExperts);
  choice.per_token = std::clamp(cost.experts_per_token(), 0, choice.experts);
  if (choice.per_token > 0) report.fit.expert_s = FromMicros(cost.expert_us());
  report.first = Sane(cost.measured().sequences(), 1e15);
  report.second = Sane(cost.measured().context_tokens(), 1e18);
  report.experts = Sane(cost.measured().experts(), 1e15);
  return report;
}

void CostEstimates::Joins(int worker, const std::string& kind) {
  workers_[worker].kind = kind;
  PoolFits();
  Judge(workers_[worker]);
}

void CostEstimates::OnReport(int worker, const Report& report, double now_s) {
  Worker& w = workers_[worker];
  now_s_ = now_s;
  // A cost of nothing is none.
  if (!(report.fit.Seconds(1, 1, 1, 1) > 0)) return;
  const bool first = !w.reported;
  w.reported = true;
  w.report = report;
  if (first) {
    Tick(now_s);
  } else {
    Judge(w);
  }
}

void CostEstimates::OnDispatch(int worker, double now_s) {
  now_s_ = now_s;
  workers_[worker].last_dispatch_s = now_s;
  Judge(workers_[worker]);
}

void CostEstimates::Tick(double now_s) {
  now_s_ = now_s;
  PoolFits();
  for (Worker& w : workers_) Judge(w);
}

void CostEstimates::PoolFits() {
  pools_.clear();
  std::vector<const Worker*> all;
  for (const Worker& w : workers_) {
    if (!w.kind.empty() && w.reported) all.push_back(&w);
  }
  for (const Worker* w : all) {
    const bool there = std::any_of(pools_.begin(), pools_.end(),
                                   [w](const Pool& pool) { return pool.kind == w->kind; });
    if (there) continue;
    std::vector<const Worker*> members;
    std::copy_if(all.begin(), all.end(), std::back_inserter(members),
                 [w](const Worker* other) { return other->kind == w->kind; });
    pools_.push_back(PoolOf(w->kind, members));
  }
  pools_.push_back(PoolOf("", all));
}

// The mean of the fits near the middle one, each with the weight of its steps: what a worker that
// is slow for a while has fitted is no cost of its kind.
CostEstimates::Pool CostEstimates::PoolOf(const std::string& kind,
                                          const std::vector<const Worker*>& members) const {
  Pool pool = {kind, standing_in_, false};
  if (members.empty()) return pool;
  // What they are compared at: the work of a mean step, or 1 of each where nothing is measured.
  double steps = 0, first = 0, second = 0, experts = 0;
  for (const Worker* w : members) {
    steps += w->report.steps;
    first += w->report.first;
    second += w->report.second;
    experts += w->report.experts;
  }
  const auto usual = [&](const Worker* w) {
    if (steps <= 0) return w->report.fit.Seconds(1, 1, 1, 1);
    return w->report.fit.Seconds(1, first / steps, second / steps, experts / steps);
  };
  std::vector<double> times;
  for (const Worker* w : members) times.push_back(usual(w));
  const auto middle = times.begin() + static_cast<int>((times.size() - 1) / 2);
  std::nth_element(times.begin(), middle, times.end());
  LinearCost sum;
  double weight = 0;
  for (const Worker* w : members) {
    if (*middle > 0 && Differs(usual(w) / *middle, kStandsOut)) continue;
    const double own = std::max(w->report.fitted_steps, 1.0);
    sum.fixed_s += own * w->report.fit.fixed_s;
    sum.first_s += own * w->report.fit.first_s;
    sum.second_s += own * w->report.fit.second_s;
    sum.expert_s += own * w->report.fit.expert_s;
    // Workers of one kind serve one model, so their choices are equal.
    if (w->report.fit.choice.experts > 0) sum.choice = w->report.fit.choice;
    weight += own;
  }
  pool.cost = sum * (1 / weight);
  pool.known = true;
  return pool;
}

CostEstimates::Estimate CostEstimates::OfKind(const std::string& kind) const {
  const auto pool = std::find_if(pools_.begin(), pools_.end(), [&kind](const Pool& p) {
    return !kind.empty() && p.kind == kind;
  });
  if (pool != pools_.end()) return {pool->cost, pool->known, pool->known, 1};
  if (pools_.empty()) return {standing_in_, false, false, 1};
  return {pools_.back().cost, pools_.back().known, false, 1};
}

// Sets what is expected of the worker.
void CostEstimates::Judge(Worker& w) const {
  w.estimate = OfKind(w.kind);
  if (!w.reported || !w.estimate.known) return;
  const Report& r = w.report;
  const double expected = w.estimate.cost.Seconds(r.steps, r.first, r.second, r.experts);
  if (!(expected > 0) || !(r.seconds > 0)) {
    w.stands_out = false;
    return;
  }
  const double faded = std::exp2(-std::max(0.0, now_s_ - r.at_s) / kHalfLife_s);
  const double evidence = std::min(r.steps, kMostSteps) * faded;
  const double pace = std::pow(r.seconds / expected, evidence / (evidence + kPoolSteps));
  w.stands_out = Differs(pace, w.stands_out ? kIsAlike : kStandsOut);
  if (!w.stands_out) return;
  const double try_every = evidence < kPoolSteps ? kTryEvery_s : kTryMeasuredEvery_s;
  if (pace > 1 && now_s_ - w.last_dispatch_s >= try_every) return;  // it may show its pace again
  w.estimate.pace = pace;
  w.estimate.cost = w.estimate.cost * pace;
}

}  // namespace baton::router
