#include "benchmarks/router_sim/peer_formulas.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace baton::benchmarks {
namespace {

constexpr double kProductionStackMissing = 2000;  // tokens

using Candidates = absl::Span<const PeerCandidate>;
using MakeFormula = std::function<std::unique_ptr<Formula>(const RouterSetup&)>;

template <class Cost>
int Lowest(Candidates candidates, Cost cost) {
  int best = 0;
  for (int i = 1; i < static_cast<int>(candidates.size()); ++i) {
    if (cost(candidates[i]) < cost(candidates[best])) best = i;
  }
  return best;
}

// A formula without a memory: a function of the query and the candidates.
template <class Function>
class Plain final : public Formula {
 public:
  explicit Plain(Function function) : function_(std::move(function)) {}
  int Pick(const PeerQuery& query, Candidates candidates) override {
    return function_(query, candidates);
  }

 private:
  Function function_;
};

template <class Function>
MakeFormula Always(Function function) {
  return [function](const RouterSetup&) { return std::make_unique<Plain<Function>>(function); };
}

// argmin of a cost.
template <class Cost>
MakeFormula Least(Cost cost) {
  return Always([cost](const PeerQuery&, Candidates all) { return Lowest(all, cost); });
}

class RoundRobin final : public Formula {
 public:
  explicit RoundRobin(const RouterSetup& setup)
      : workers_(setup.workers), next_(static_cast<int>(setup.seed % setup.workers)) {}
  int Pick(const PeerQuery&, Candidates all) override {
    const int best =
        Lowest(all, [this](const auto& c) { return (c.worker - next_ + workers_) % workers_; });
    next_ = (all[best].worker + 1) % workers_;
    return best;
  }

 private:
  const int workers_;
  int next_;
};

// Rendezvous of the first tokens, cached or not.
int PrefixHash(const PeerQuery& query, Candidates all) {
  constexpr size_t kHashedBlocks = 2;  // 1,024 tokens
  uint64_t hash = 0;
  const auto& blocks = query.request->blocks;
  for (size_t i = 0; i < std::min(blocks.size(), kHashedBlocks); ++i) {
    hash = Scramble(hash ^ static_cast<uint64_t>(blocks[i] + 1));
  }
  if (blocks.empty()) hash = static_cast<uint64_t>(query.request->prompt_tokens);
  return Lowest(all, [hash](const auto& c) { return Scramble(hash ^ Scramble(c.worker)); });
}

// Dynamo: active + incoming prefill tokens less what is cached on the device, in blocks. All
// prefill tokens active are those that this router has sent and has no answer to.
double DynamoLinear(const PeerCandidate& c, const SimRequest& r) {
  const double cached = c.match * r.prompt_tokens;
  const double left = static_cast<double>(c.in_flight_tokens) + r.prompt_tokens - cached;
  return std::max(left, 0.0) / kSimBlockTokens;
}

// llm-d: 3 * match + 2 * queue (1 for the shortest, 0 for the longest) + 2 * KV headroom.
int LlmD(const PeerQuery&, Candidates all) {
  const auto [low, high] = std::minmax_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.queued < b.queued; });
  const double least = low->queued, most = high->queued;
  return Lowest(all, [least, most](const auto& c) {
    const double queue = most > least ? (most - c.queued) / (most - least) : 1;
    return -(3 * c.match + 2 * queue + 2 * c.free_part);
  });
}

// SGLang's gateway: balance if far out of balance, else the tree if it has more than half.
int SglangGateway(const PeerQuery&, Candidates all) {
  constexpr int kAbsolute = 32;
  constexpr double kRelative = 1.1, kMatch = 0.5;
  const auto load = [](const PeerCandidate& c) { return c.in_flight; };
  int least = all[0].in_flight, most = all[0].in_flight;
  for (const PeerCandidate& c : all) {
    least = std::min(least, c.in_flight);
    most = std::max(most, c.in_flight);
  }
  if (most - least > kAbsolute && most > kRelative * least) return Lowest(all, load);
  const int deepest = Lowest(all, [](const auto& c) { return -c.match; });
  return all[deepest].match > kMatch ? deepest : Lowest(all, load);
}

// AIBrix: (100 - match %) * 0.1 + requests / most requests, of those not above mean + 1 sigma.
int AiBrix(const PeerQuery&, Candidates all) {
  double sum = 0, squares = 0;
  int most = 1;
  for (const PeerCandidate& c : all) {
    sum += c.in_flight;
    squares += static_cast<double>(c.in_flight) * c.in_flight;
    most = std::max(most, c.in_flight);
  }
  const double n = static_cast<double>(all.size()), mean = sum / n;
  const double limit = mean + std::sqrt(std::max(squares / n - mean * mean, 0.0));
  return Lowest(all, [limit, most](const auto& c) {
    const double cost = (100 - 100 * c.match) * 0.1 + static_cast<double>(c.in_flight) / most;
    return std::make_pair(c.in_flight > limit, cost);
  });
}

// production-stack: the first (by address) that lacks at most 2,000 tokens; no load. Without one,
// the fewest requests in flight.
int ProductionStack(const PeerQuery& query, Candidates all) {
  const int tokens = query.request->prompt_tokens;
  return Lowest(all, [tokens](const auto& c) {
    const double missing = tokens * (1 - c.match);
    const bool holder = c.matched_blocks > 0 && missing <= kProductionStackMissing;
    return std::make_pair(!holder, holder ? c.worker : c.in_flight);
  });
}

double GreedyCost(const PeerCandidate& c) { return c.queue_s + c.service_s; }

// argmin Q + (1 + κ) * T, κ = min(8, mean Q / mean T): the plain form of what Baton does.
class Priced final : public Formula {
 public:
  int Pick(const PeerQuery&, Candidates all) override {
    constexpr double kHighest = 8, kShare = 0.02;
    double queue_s = 0;
    for (const PeerCandidate& c : all) queue_s += c.queue_s;
    queue_s /= static_cast<double>(all.size());
    const double price = service_s_ > 0 ? std::min(kHighest, queue_s / service_s_) : 0;
    const int best =
        Lowest(all, [price](const auto& c) { return c.queue_s + (1 + price) * c.service_s; });
    service_s_ += (service_s_ > 0 ? kShare : 1) * (all[best].service_s - service_s_);
    return best;
  }

 private:
  double service_s_ = 0;  // of those chosen
};

}  // namespace

std::vector<PeerKind> PeerKinds() {
  constexpr int kLlmDTreeBlocks = 31'250;
  const MakeFormula llm_d = Always(LlmD);
  return {
      {"round robin", Knows::kNothing,
       [](const RouterSetup& setup) { return std::make_unique<RoundRobin>(setup); }},
      {"least loaded", Knows::kNothing, Least([](const auto& c) { return c.queued_tokens; })},
      {"prefix hash", Knows::kNothing, Always(PrefixHash)},
      {"SGLang gateway, approximate tree", Knows::kDispatches, Always(SglangGateway)},
      {"llm-d approximate", Knows::kDispatches, llm_d, kLlmDTreeBlocks},
      {"llm-d weights + events", Knows::kEvents, llm_d},
      {"AIBrix", Knows::kDispatches, Always(AiBrix)},
      {"production-stack", Knows::kEvents, Always(ProductionStack)},
      {"Dynamo linear + speculation", Knows::kSpeculation,
       Always([](const PeerQuery& query, Candidates all) {
         return Lowest(all, [&](const auto& c) { return DynamoLinear(c, *query.request); });
       })},
      // Mooncake's Alg. 1 without copying KV between prefill workers is this, with refusal.
      {"greedy min TTFT, events", Knows::kEvents, Least(GreedyCost)},
      {"(Q+T)T", Knows::kSpeculation,
       Least([](const auto& c) { return GreedyCost(c) * c.service_s; })},
      {"priced, g = 1", Knows::kSpeculation,
       [](const RouterSetup&) { return std::make_unique<Priced>(); }},
  };
}

}  // namespace baton::benchmarks
