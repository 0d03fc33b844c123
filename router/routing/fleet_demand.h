// How many workers of each role the present load wants: what an autoscaler needs to know.
//
// Prompts. Work is counted in seconds of one worker's computing. What arrives in a second is what
// the workers compute in it and what their queues grow by in it, so it is known also while all
// workers are busy, and every router sees the work that all routers send. The workers wanted are
//
//   arriving / busy_target + excess / kDrain_s
//
// where the excess is the part of the queues that the present workers do not finish within the
// target for the first token.
//
// Answers. A worker holds as many sequences as its batch has places, and no more than leave a step
// within the target for the time between tokens (unless even one sequence misses it: then more
// workers do not help). Sequences and KV pages count with those that wait for them, so one look at
// a full fleet with a long queue tells the whole number that is wanted. What workers that answer
// compute of prompts comes on top.
//
// Requests that a router has refused for load want workers, too: their prompts' work and, by
// Little's law, their sequences, both as those of the requests that it sends. They count for no
// more than these do: clients come again, and each time counts.
#ifndef BATON_ROUTER_ROUTING_FLEET_DEMAND_H_
#define BATON_ROUTER_ROUTING_FLEET_DEMAND_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "baton/v1/admin.pb.h"
#include "router/routing/decayed_mean.h"
#include "router/routing/linear_cost.h"

namespace baton::router {

struct DemandTargets {
  double ttft_s = 2.5;
  double inter_token_s = 0.1;
  double busy = 0.7;   // share of a worker's time that is spent computing prompts
  double fill = 0.75;  // share of a worker's places, and of its KV pages, that are taken
};

// One worker as its last report shows it, with what this router has sent since.
struct LoadOfWorker {
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
  bool ready = false;          // else it finishes what it has, and takes nothing new
  double backlog_s = 0;        // until all its prompts are computed
  double busy = 0;             // share of its last seconds in which it computed prompts
  int running = 0;             // sequences that have pages
  int queued = 0;              // that wait for them
  int64_t context_tokens = 0;  // of `running`
  int64_t queued_tokens = 0;   // of `queued`
  int used_blocks = 0;
  int total_blocks = 0;
  double token_pages = 1.0 / 16;         // that a token takes, at the most
  int max_sequences = 0;                 // places in its batch; 0: unknown
  LinearCost step = kDefaultDecodeCost;  // of decoding
};

// Units: seconds, and shares from 0 to 1.
struct Demand {
  double prefill_backlog_s = 0;  // of all workers of the role together
  double decode_backlog_s = 0;
  double kv_headroom = 0;              // share of the ready decode workers' pages that are free
  double sequence_headroom = 0;        // and of their places; below 0, as pages, if more wait
  double predicted_ttft_s = 0;         // mean of the requests sent lately; 0: none was
  double predicted_inter_token_s = 0;  // mean over the running sequences; 0: there are none
  // 0 until a worker of the role has been ready; the last numbers while none is.
  int prefill_workers = 0;
  int decode_workers = 0;
};

// Times are seconds of one clock. Unsynchronized.
class FleetDemand {
 public:
  // Queues that are too long should be gone after this time.
  static constexpr double kDrain_s = 30;
  // Rates are means over about this time, numbers of sequences over a third of it.
  static constexpr double kWindow_s = 15;

  explicit FleetDemand(const DemandTargets& targets) : targets_(targets) {}

  // A request was sent: the time to its first token, as predicted, and that of its computing alone.
  void OnSent(double ttft_s, double computing_s, double now_s);
  void OnAnswered(int64_t generated_tokens) {
    answer_tokens_.Add(static_cast<double>(generated_tokens));
  }
  // Several times a minute or more. `loads`: all workers that have reported lately, draining ones
  // included. `refused`: requests refused for load since the start.
  void Update(absl::Span<const LoadOfWorker> loads, int64_t refused, double now_s);

  const Demand& demand() const { return demand_; }

 private:
  // A mean in which values fade with time; the plain mean at first.
  class FadingMean {
   public:
    void Add(double value, double keeps);  // what came before counts `keeps`
    double value() const { return weight_ > 0 ? sum_ / weight_ : 0; }

   private:
    double sum_ = 0, weight_ = 0;
  };
  // What workers of a role have to compute.
  struct Prompts {
    FadingMean arriving;  // workers' worth
    double backlog_s = 0;
  };
  struct Answers;

  // Workers of the role that its prompts want.
  double ForPrompts(absl::Span<const LoadOfWorker> loads, v1::WorkerRole role, double refused_work,
                    double passed_s, Prompts* prompts) const;
  double ForAnswers(const Answers& answers, double refused_a_second);

  const DemandTargets targets_;
  Demand demand_;
  std::optional<double> updated_at_s_;
  int64_t refused_ = 0;
  FadingMean refused_rate_;
  Prompts prefill_, decode_;
  FadingMean sequences_;  // running and waiting
  double context_ = 0;    // tokens of a running sequence, when last some ran
  DecayedMean answer_tokens_;
  DecayedMean computing_s_;  // of a request's prompt
  double ttft_sum_s_ = 0, ttft_weight_ = 0, ttft_at_s_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_FLEET_DEMAND_H_
