// The time of steps on each worker, estimated from the reports of all: estimates that recover.
//
// Workers of one kind (role, model and device) should be equally fast, so their fits are pooled:
// the expected cost of a worker is its pool's cost times its own pace. The pace counts as far as
// there is recent evidence for it, and drifts back to 1 without: a worker that was slow when it was
// last measured is soon compared like its equals, chosen again, and measured again. Paces near 1
// count as 1: fits of equal machines differ by chance, and the seemingly fastest would get all new
// requests. A slow worker that has had no request for a while is tried with one, at a bounded rate.
#ifndef BATON_ROUTER_ROUTING_COST_ESTIMATES_H_
#define BATON_ROUTER_ROUTING_COST_ESTIMATES_H_

#include <string>
#include <vector>

#include "baton/internal/v1/worker.pb.h"
#include "router/routing/linear_cost.h"

namespace baton::router {

// For one kind of step, prefill or decode. Workers are numbers, as in Roster; times are seconds of
// its clock. Unsynchronized.
class CostEstimates {
 public:
  // `standing_in`: the cost until a worker has reported.
  explicit CostEstimates(const LinearCost& standing_in) : standing_in_(standing_in) {}

  void Grow(int worker_count) { workers_.resize(worker_count); }
  // Workers with an equal `kind` are pooled.
  void Joins(int worker, const std::string& kind);
  void Forget(int worker) { workers_[worker] = Worker(); }

  // A worker's report, as of that time. Numbers that make no sense are ignored.
  struct Report {
    LinearCost fit;
    double fitted_steps = 0;
    // Sums over the steps measured lately.
    double steps = 0;
    double seconds = 0;
    double first = 0;
    double second = 0;
    double experts = 0;
    double at_s = 0;  // an idle worker repeats its last measurements, which get older
  };
  void OnReport(int worker, const Report& report, double now_s);
  // A request was sent to the worker.
  void OnDispatch(int worker, double now_s);
  // Call several times a second: brings pools and paces up to date.
  void Tick(double now_s);

  // As of the last Tick or report.
  struct Estimate {
    LinearCost cost;
    bool known = false;    // some worker of this kind has reported, or else of any kind
    bool of_kind = false;  // some worker of this kind has
    double pace = 1;       // in `cost`: above 1 is slower than the pool
  };
  const Estimate& Of(int worker) const { return workers_[worker].estimate; }
  // What is expected of any worker of the kind.
  Estimate OfKind(const std::string& kind) const;

 private:
  struct Worker {
    std::string kind;  // empty: takes no part
    bool reported = false;
    Report report;
    bool stands_out = false;
    double last_dispatch_s = 0;
    Estimate estimate;
  };
  struct Pool {
    std::string kind;
    LinearCost cost;
    bool known = false;
  };

  void PoolFits();
  Pool PoolOf(const std::string& kind, const std::vector<const Worker*>& members) const;
  void Judge(Worker& worker) const;

  const LinearCost standing_in_;
  double now_s_ = 0;  // time of the last call that gave one
  std::vector<Worker> workers_;
  std::vector<Pool> pools_;  // the last one is all workers'
};

// The costs that a worker reported, as of the time `at_s`.
CostEstimates::Report ReportOf(const internal::v1::PrefillCost& cost, double at_s);
CostEstimates::Report ReportOf(const internal::v1::DecodeCost& cost, double at_s);

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_COST_ESTIMATES_H_
