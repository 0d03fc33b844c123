// Decode calls of a simulated router: router::DecodeNetwork over the streams of a World.
#ifndef BATON_TESTS_SIMULATION_DECODE_NETWORK_H_
#define BATON_TESTS_SIMULATION_DECODE_NETWORK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "router/request/continuation_line.h"
#include "router/request/decode_network.h"
#include "tests/simulation/bug.h"
#include "tests/simulation/worker.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

class SimDecodeNetwork final : public router::DecodeNetwork {
 public:
  struct Counts {
    std::vector<int> calls;  // to each decode worker
    int resumed = 0;         // of them, those that went on from tokens of the answer
  };
  // `node` is the router's. Workers are numbered as in Roster: the first decode worker is
  // `first_worker`. All must outlive it. `counts` and `line` (for planted bugs) are written to.
  SimDecodeNetwork(World& world, int node, const std::vector<DecodeWorker*>& workers,
                   int first_worker, Counts& counts, router::ContinuationLine& line, Bug bug)
      : world_(world),
        node_(node),
        workers_(workers),
        first_worker_(first_worker),
        counts_(counts),
        line_(line),
        bug_(bug) {}
  // The router's process is gone: nothing is heard of any call.
  ~SimDecodeNetwork() override;

  router::DecodeHandle* Open(int worker, internal::v1::DecodeRequest request,
                             const TraceContext& trace, absl::Time deadline,
                             std::shared_ptr<router::DecodeListener> listener, int call) override;

  // Calls that have not ended yet.
  int live_calls() const { return static_cast<int>(calls_.size()); }

 private:
  class Call;

  World& world_;
  const int node_;
  const std::vector<DecodeWorker*>& workers_;
  const int first_worker_;
  Counts& counts_;
  router::ContinuationLine& line_;
  const Bug bug_;
  std::map<uint64_t, std::shared_ptr<Call>> calls_;
  uint64_t last_call_ = 0;
  // Of planted bugs.
  std::vector<std::shared_ptr<router::DecodeListener>> leaked_calls_;
  std::vector<router::ContinuationLine::Hold> leaked_holds_;
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_DECODE_NETWORK_H_
