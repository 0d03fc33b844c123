#include "benchmarks/router_sim/peer_formulas.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"

namespace baton::simulator::sweeps {
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
  RoundRobin(int workers, uint64_t seed)
      : workers_(workers), next_(static_cast<int>(seed % workers)) {}
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
    hash = SplitMix64(hash ^ static_cast<uint64_t>(blocks[i] + 1));
  }
  if (blocks.empty()) hash = static_cast<uint64_t>(query.request->prompt_tokens);
  return Lowest(all, [hash](const auto& c) { return SplitMix64(hash ^ SplitMix64(c.worker)); });
}

// Dynamo: active + incoming tokens of prompts less what is cached on the device, in blocks. Those
// active are what this router has sent and a prefill worker has no answer to, or a decode worker
// has not ended.
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

// Two by chance (the order is random), and the better one of them.
template <class Cost>
MakeFormula BetterOfTwo(Cost cost) {
  return Always([cost](const PeerQuery&, Candidates all) {
    return Lowest(all.first(std::min<size_t>(all.size(), 2)), cost);
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

// A router of each tier, which know nothing of each other.
class PairedRouter final : public SimRouter {
 public:
  PairedRouter(std::unique_ptr<SimRouter> prefill, std::unique_ptr<SimRouter> decode)
      : prefill_(std::move(prefill)), decode_(std::move(decode)) {}

  void OnStreamStarted(int worker, int64_t now_us) override {
    prefill_->OnStreamStarted(worker, now_us);
    decode_->OnStreamStarted(worker, now_us);
  }
  void OnStreamLost(int worker, int64_t now_us) override {
    prefill_->OnStreamLost(worker, now_us);
    decode_->OnStreamLost(worker, now_us);
  }
  void OnEvent(int worker, const internal::v1::WatchResponse& event, int64_t now_us) override {
    prefill_->OnEvent(worker, event, now_us);
    decode_->OnEvent(worker, event, now_us);
  }
  SimRoute Choose(int request, int avoid, int64_t now_us) override {
    const SimRoute decode = decode_->Choose(request, avoid, now_us);
    if (!decode.found()) return {};
    return {prefill_->Choose(request, avoid, now_us).prefill, decode.decode};
  }
  void OnAnswer(int request, const SimRoute& route, int64_t now_us) override {
    prefill_->OnAnswer(request, route, now_us);
  }
  void OnEnd(int request, const SimRoute& route, const SimAnswer& answer, int64_t now_us) override {
    decode_->OnEnd(request, route, answer, now_us);
  }
  void OnLoss(int request, const SimRoute& route, int64_t now_us) override {
    prefill_->OnLoss(request, route, now_us);
    decode_->OnLoss(request, route, now_us);
  }
  int64_t IndexBytes() const override { return prefill_->IndexBytes() + decode_->IndexBytes(); }

 private:
  const std::unique_ptr<SimRouter> prefill_, decode_;
};

}  // namespace

std::vector<PeerKind> PeerKinds() {
  constexpr int kLlmDTreeBlocks = 31'250;
  const MakeFormula llm_d = Always(LlmD);
  return {
      {"round robin", Knows::kNothing,
       [](const RouterSetup& setup) {
         return std::make_unique<RoundRobin>(setup.workers, setup.seed);
       }},
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

std::vector<PeerKind> DecodePeerKinds() {
  const auto requests = [](const PeerCandidate& c) { return c.running + c.queued; };
  const auto dispatched = [](const PeerCandidate& c) { return c.in_flight; };
  const auto dynamo = [](const PeerQuery& query, Candidates all) {
    return Lowest(all, [&](const auto& c) { return DynamoLinear(c, *query.request); });
  };
  // As if all its routers told each other at once what they have sent.
  const auto dynamo_in_sync = [](const PeerQuery& query, Candidates all) {
    return Lowest(all, [&](const auto& c) {
      return c.used_blocks - c.match * query.request->prompt_tokens * c.blocks_per_token;
    });
  };
  std::vector<PeerKind> kinds = {
      {"round robin", Knows::kNothing,
       [](const RouterSetup& setup) {
         return std::make_unique<RoundRobin>(setup.decode_workers, setup.seed);
       }},
      {"least loaded", Knows::kNothing, Least(requests)},
      {"least KV", Knows::kNothing, Least([](const auto& c) { return c.used_blocks; })},
      {"power of two choices", Knows::kNothing, BetterOfTwo(requests)},
      {"Dynamo, a router alone", Knows::kEvents, Always(dynamo)},
      {"Dynamo, routers in sync", Knows::kEvents, Always(dynamo_in_sync)},
      {"llm-d queue + KV", Knows::kNothing, Always(LlmD)},
      {"llm-d queue + KV + prefix", Knows::kEvents, Always(LlmD)},
      {"SGLang gateway, power of two", Knows::kNothing, BetterOfTwo(dispatched)},
      {"SGLang gateway, approximate tree", Knows::kDispatches, Always(SglangGateway)},
  };
  for (PeerKind& kind : kinds) {
    kind.tier = Tier::kDecode;
    kind.prefill_kind = absl::StartsWith(kind.name, "Dynamo")   ? "Dynamo linear + speculation"
                        : absl::StartsWith(kind.name, "llm-d")  ? "llm-d weights + events"
                        : absl::StartsWith(kind.name, "SGLang") ? "SGLang gateway, approximate tree"
                        : kind.name == "round robin"            ? "round robin"
                                                                : "least loaded";
  }
  return kinds;
}

MakeRouter MakePeerRouter(const PeerKind& kind) {
  return [kind](const RouterSetup& setup) -> std::unique_ptr<SimRouter> {
    if (kind.tier == Tier::kPrefill || setup.workers == 0) {
      return std::make_unique<PeerRouter>(kind, setup);
    }
    for (const PeerKind& prefill : PeerKinds()) {
      if (prefill.name == kind.prefill_kind) {
        return std::make_unique<PairedRouter>(std::make_unique<PeerRouter>(prefill, setup),
                                              std::make_unique<PeerRouter>(kind, setup));
      }
    }
    BATON_CHECK(false) << "no policy is called " << kind.prefill_kind;
  };
}

}  // namespace baton::simulator::sweeps
