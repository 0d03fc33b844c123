// A router of a simulation: one process at a node of the World, killed and started again, in which
// everything but streams, threads and time is the router's real code.
#ifndef BATON_TESTS_SIMULATION_ROUTER_H_
#define BATON_TESTS_SIMULATION_ROUTER_H_

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "router/options.h"
#include "router/request/generate_call.h"
#include "tests/simulation/bug.h"
#include "tests/simulation/decode_network.h"
#include "tests/simulation/judge.h"
#include "tests/simulation/worker.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

class Router {
 public:
  // One client's call while the router has it.
  class Call;

  // `options`: as for a real router; only what needs no gRPC is looked at. The workers must outlive
  // it.
  Router(World& world, std::string name, std::vector<PrefillWorker*> prefill,
         std::vector<DecodeWorker*> decode, const router::Options& options, Bug bug = Bug::kNone);
  ~Router();

  int node() const { return node_; }
  bool alive() const { return world_.alive(node_); }
  // A process without any memory of those before it.
  void Start();
  // All its streams end. Each client that has a call learns of it by `on_lost`, in due time.
  void Kill(bool machine_gone);

  // A client's call has come. REQUIRES: alive.
  std::weak_ptr<Call> Take(const v1::GenerateRequest& request, Micros deadline, bool client_reads,
                           std::shared_ptr<Judge> judge, std::function<void()> on_lost);
  // The client cancels, or its deadline has passed.
  void Cancel(const std::weak_ptr<Call>& call);

  // Nothing of any request is left: no calls, streams, places, holds, prompts.
  bool Idle() const;
  std::string Describe() const;
  // Watch streams that are open.
  size_t watch_count() const;
  // Of the retry budget; what it was at the start of the process is its reserve.
  double retry_budget_level() const;
  const SimDecodeNetwork::Counts& counts() const { return counts_; }

 private:
  struct Process;

  Worker& worker(int index) const;
  void OpenWatch(int index);
  void LoseWatch(int index, const absl::Status& why);
  void Tick();
  void TickCalls();
  // Runs `event` in this process, if that is still there.
  void After(Micros time, std::function<void()> event);

  World& world_;
  const std::string name_;
  const std::vector<PrefillWorker*> prefill_;
  const std::vector<DecodeWorker*> decode_;
  const router::Options options_;
  const Bug bug_;
  const int node_;
  SimDecodeNetwork::Counts counts_;
  std::shared_ptr<Process> process_;  // null: dead
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_ROUTER_H_
