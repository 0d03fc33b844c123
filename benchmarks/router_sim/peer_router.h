// Routers other than Baton's, re-implemented from the formulas that they publish, at default
// weights: not the products. What they know is kept here; what they do with it is a Formula.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_PEER_ROUTER_H_
#define BATON_BENCHMARKS_ROUTER_SIM_PEER_ROUTER_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "simulator/block_cache.h"
#include "simulator/random.h"
#include "simulator/sim_router.h"

namespace baton::simulator::sweeps {

// Where a router takes the cached prefix from.
enum class Knows {
  kNothing,
  kEvents,       // what workers tell of their caches
  kSpeculation,  // that, and the router's own dispatches that are not answered yet
  kDispatches,   // an approximate tree: what this router has sent there, whatever became of it
};

struct PeerCandidate {
  int worker = 0;
  int matched_blocks = 0;  // of the trace
  double match = 0;        // part of the prompt that is cached
  // Reported; `queued` and `queued_tokens` with own dispatches since.
  int running = 0, queued = 0;
  int64_t queued_tokens = 0;
  double free_part = 1;  // of the KV blocks
  // As reported, and what own dispatches since will take.
  int used_blocks = 0;
  double blocks_per_token = 0;
  // This router's own dispatches that still keep the worker busy: a prefill worker until the first
  // token, a decode worker until the last.
  int in_flight = 0;
  int64_t in_flight_tokens = 0;  // of prompts, not cached there
  // Seconds: of the work there, as reported and with own dispatches since, and of this prompt.
  double queue_s = 0, service_s = 0;
};

struct PeerQuery {
  const SimRequest* request = nullptr;
  double now_s = 0;
};

class Formula {
 public:
  virtual ~Formula() = default;
  // An index into `candidates`, which is not empty; their order is random, so that the first of
  // equals is a fair choice.
  virtual int Pick(const PeerQuery& query, absl::Span<const PeerCandidate> candidates) = 0;
};

enum class Tier { kPrefill, kDecode };

struct PeerKind {
  std::string name;
  Knows knows = Knows::kNothing;
  std::function<std::unique_ptr<Formula>(const RouterSetup&)> make;
  int tree_blocks = 0;  // of an approximate tree, a worker; 0: as many as the worker's cache has
  Tier tier = Tier::kPrefill;  // that it chooses a worker of
  // Of one for the decode tier: which one is beside it where both tiers are simulated.
  std::string prefill_kind = "";
};

// Knows and chooses workers of one tier.
class PeerRouter final : public SimRouter {
 public:
  PeerRouter(const PeerKind& kind, const RouterSetup& setup);

  void OnStreamStarted(int worker, int64_t now_us) override;
  void OnStreamLost(int worker, int64_t now_us) override;
  void OnEvent(int worker, const internal::v1::WatchResponse& event, int64_t now_us) override;
  SimRoute Choose(int request, int avoid, int64_t now_us) override;
  void OnAnswer(int request, const SimRoute& route, int64_t now_us) override;
  void OnEnd(int request, const SimRoute& route, const SimAnswer& answer, int64_t now_us) override;
  void OnLoss(int request, const SimRoute& route, int64_t now_us) override;
  int64_t IndexBytes() const override;

 private:
  struct Dispatch {
    int request;
    int64_t at_us;
    int64_t work_us;
    int tokens;
    int64_t forget_us = -1;  // once answered: when its blocks are in the worker's events
  };
  struct Worker {
    bool up = false;
    int total_blocks = 1;
    internal::v1::LoadReport load;
    int64_t reported_us = 0;
    std::vector<bool> cached;  // by block, as told
    int64_t cached_count = 0;
    std::vector<uint16_t> brought;  // by block: own dispatches that bring it
    std::deque<Dispatch> in_flight;
    std::deque<Dispatch> answered;  // not forgotten yet
    int64_t in_flight_tokens = 0;
    std::unique_ptr<BlockCache> tree;
  };

  bool Decodes() const { return kind_.tier == Tier::kDecode; }
  bool Chooses(int worker) const {
    return worker >= first_ && worker < first_ + static_cast<int>(workers_.size());
  }
  // The chosen worker of the tier, as an index into workers_.
  int IndexOf(const SimRoute& route) const {
    return (Decodes() ? route.decode : route.prefill) - first_;
  }
  int Match(const Worker& worker, const SimRequest& request) const;
  void Forget(Worker* worker, int64_t now_us);
  void Remove(int request, const SimRoute& route, bool answered, int64_t now_us);
  void DropAll(Worker* worker);

  const PeerKind kind_;
  const RouterSetup setup_;
  const int first_;  // worker of the tier
  std::unique_ptr<Formula> formula_;
  SimRandom random_;
  std::vector<Worker> workers_;
  std::vector<PeerCandidate> candidates_;
};

}  // namespace baton::simulator::sweeps

#endif  // BATON_BENCHMARKS_ROUTER_SIM_PEER_ROUTER_H_
