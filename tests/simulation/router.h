// The router of a simulation: real roster, planner and policy. Requests are retried and resumed as
// docs/design/failover.md describes, and checked against the oracle token by token.
#ifndef BATON_TESTS_SIMULATION_ROUTER_H_
#define BATON_TESTS_SIMULATION_ROUTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "router/routing/priced_policy.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/worker.h"
#include "tests/simulation/world.h"
#include "tests/testing/routed_fleet.h"

namespace baton::simulation {

class Router {
 public:
  struct Counts {
    int finished = 0;
    int failed = 0;  // with an error, as it should be
    int cancelled = 0;
    int resumed = 0;  // legs that went on from tokens sent already
    int64_t tokens = 0;
  };
  // The workers must outlive it.
  Router(World& world, std::vector<PrefillWorker*> prefill, std::vector<DecodeWorker*> decode);
  ~Router();

  int node() const { return node_; }
  void Submit(const RequestSpec& spec);
  bool AllEnded() const { return open_requests_ == 0; }
  const Counts& counts() const { return counts_; }
  // Decode calls opened to each decode worker so far.
  const std::vector<int>& calls() const { return calls_; }
  // By reason, or else code.
  const std::map<std::string, int>& failed_by_reason() const { return failed_by_reason_; }

  bool loses_a_token = false;  // a planted bug: resumes one token too late

 private:
  struct Request;
  struct Leg;

  Worker& worker(int index) const;
  void OpenWatch(int index);
  void LoseWatch(int index, const absl::Status& why);
  void Tick();

  void Attempt(const std::shared_ptr<Request>& request, int first_choice, int n);
  void OnResponse(const std::shared_ptr<Leg>& leg, const internal::v1::DecodeResponse& response);
  void OnStatus(const std::shared_ptr<Leg>& leg, const absl::Status& status);
  void CheckStall(const std::shared_ptr<Leg>& leg);
  // Before the next attempt, longer each time.
  Micros Pause(Request& request);
  void Retry(const std::shared_ptr<Leg>& leg, Micros after);
  void CloseLeg(Leg& leg);
  void EndRequest(Request& request, const absl::Status& status);

  World& world_;
  const std::vector<PrefillWorker*> prefill_;
  const std::vector<DecodeWorker*> decode_;
  const int node_;
  router::PricedPolicy policy_;
  testing::RoutedFleet fleet_;
  std::vector<std::shared_ptr<Stream>> watches_;  // null: none is open
  int open_requests_ = 0;
  uint64_t request_count_ = 0;
  Counts counts_;
  std::vector<int> calls_;
  std::map<std::string, int> failed_by_reason_;
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_ROUTER_H_
