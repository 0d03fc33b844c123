#include "simulator/cluster_plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "simulator/baton_router.h"

namespace baton::simulator {
namespace {

Bottleneck FirstTokenBottleneck(const CellResult& result) {
  const LateFirstTokens& late = result.late;
  const std::pair<double, Bottleneck> causes[] = {{late.prefill_s, Bottleneck::kPrefillQueue},
                                                  {late.slot_s, Bottleneck::kDecodeSlots},
                                                  {late.kv_s, Bottleneck::kDecodeKv},
                                                  {late.computing_s, Bottleneck::kPromptTime}};
  return std::max_element(std::begin(causes), std::end(causes),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

Bottleneck GapBottleneck(const DecodeFigures& figures) {
  const std::pair<int64_t, Bottleneck> causes[] = {
      {figures.late_steps, Bottleneck::kBatch},
      {figures.late_preempted, Bottleneck::kPreemption},
      {figures.late_first_gaps, Bottleneck::kTransfer}};
  return std::max_element(std::begin(causes), std::end(causes),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

Bottleneck BottleneckOf(const ClusterCell& cell) {
  return cell.first_token_holds ? cell.gap_bottleneck : cell.first_token_bottleneck;
}

class Planner {
 public:
  Planner(const Trace& trace, const ClusterQuestion& question,
          const std::function<void(const ClusterCell&)>& progress)
      : trace_(trace), question_(question), progress_(progress) {}

  ClusterPlan Plan() {
    ClusterPlan plan;
    const bool local = question_.max_local_prefill_tokens > 0;
    if (local) {
      SearchWithoutPrefill();
    } else {
      plan.least_prefill = LeastPrefillWorkers(trace_, question_.scenario);
    }
    const int least = std::min(std::max(plan.least_prefill, 1), question_.most_prefill);
    // Both tiers grow until the objectives hold.
    int prefill = least, decode = 1;
    while (!At(prefill, decode).holds() &&
           (prefill < question_.most_prefill || decode < question_.most_decode)) {
      const ClusterCell& cell = At(prefill, decode);
      // A tier whose objective holds needs no more, as far as one cell can tell.
      const bool prompts =
          !cell.first_token_holds && (cell.first_token_bottleneck == Bottleneck::kPrefillQueue ||
                                      cell.first_token_bottleneck == Bottleneck::kPromptTime);
      const bool answers = !cell.gap_holds || (!cell.first_token_holds && !prompts);
      const int more_prefill = std::min(prefill * 2, question_.most_prefill);
      const int more_decode = std::min(decode * 2, question_.most_decode);
      if (prompts && more_prefill > prefill) prefill = more_prefill;
      if (answers && more_decode > decode) decode = more_decode;
      const bool grew = prefill != cell.prefill || decode != cell.decode;
      if (!grew) {
        prefill = more_prefill;
        decode = more_decode;
      }
    }
    if (At(prefill, decode).holds()) FollowBorder(least, prefill, decode);
    SimulateNeighbours();
    Finish(&plan);
    return plan;
  }

 private:
  using Sizes = std::pair<int, int>;

  const ClusterCell& At(int prefill, int decode) {
    const auto found = cells_.find({prefill, decode});
    if (found != cells_.end()) return found->second;
    const ClusterCell& cell =
        cells_.emplace(Sizes(prefill, decode), SimulateCluster(trace_, question_, prefill, decode))
            .first->second;
    if (progress_) progress_(cell);
    return cell;
  }

  // The least number in [low, high] that holds, if more workers never harm. REQUIRES: `high` holds.
  template <class Holds>
  static int Least(int low, int high, Holds holds) {
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (holds(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  void SearchWithoutPrefill() {
    int decode = 1;
    while (!At(0, decode).holds() && decode < question_.most_decode) {
      decode = std::min(decode * 2, question_.most_decode);
    }
    if (!At(0, decode).holds()) return;
    Least(decode / 2 + 1, decode, [&](int count) { return At(0, count).holds(); });
  }

  double PriceOf(int prefill, int decode) const {
    return prefill * question_.prefill_price + decode * question_.decode_price;
  }

  // Follows the border between the sizes that hold and those that do not, from few prefill workers
  // and many decode workers to many and few. Tiers replace each other where decode workers compute
  // prompts, so the border goes beyond the size that holds: to those that are too expensive even
  // with the fewest workers of the other role. REQUIRES: (prefill, decode) holds.
  void FollowBorder(int least_prefill, int prefill, int decode) {
    // A cheaper size that holds makes the area smaller.
    const int few =
        Least(least_prefill, prefill, [&](int count) { return At(count, decode).holds(); });
    Least(1, decode, [&](int count) { return At(few, count).holds(); });
    int most_prefill = prefill, most_decode = decode;
    while (most_prefill < question_.most_prefill &&
           PriceOf(most_prefill + 1, 1) < Cheapest()->price) {
      ++most_prefill;
    }
    // Of equally cheap sizes, that with the fewest prefill workers is wanted.
    while (most_decode < question_.most_decode &&
           PriceOf(least_prefill, most_decode + 1) <= Cheapest()->price) {
      ++most_decode;
    }
    prefill =
        Least(least_prefill, prefill, [&](int count) { return At(count, most_decode).holds(); });
    decode = Least(1, most_decode, [&](int count) { return At(prefill, count).holds(); });
    const int least_decode =
        Least(1, decode, [&](int count) { return At(most_prefill, count).holds(); });
    while (decode > least_decode && PriceOf(prefill, least_decode) < Cheapest()->price) {
      if (At(prefill, decode - 1).holds()) {
        --decode;
      } else if (prefill < most_prefill) {
        ++prefill;
      } else {
        break;
      }
    }
  }

  // The next smaller sizes show what binds the cheapest one. Not all sizes were simulated, so one
  // of them may hold; then it is the cheapest, and its smaller neighbours are simulated. With other
  // prices, another size is the cheapest, but only those on the border can be.
  void SimulateNeighbours() {
    const int none = question_.max_local_prefill_tokens > 0 ? 0 : 1;
    for (const ClusterCell* best = nullptr; best != Cheapest();) {
      best = Cheapest();
      if (best->prefill > none) At(best->prefill - 1, best->decode);
      if (best->decode > 1) At(best->prefill, best->decode - 1);
    }
  }

  const ClusterCell* Cheapest() const {
    const ClusterCell* best = nullptr;
    for (const auto& [sizes, cell] : cells_) {
      if (cell.holds() && (best == nullptr || cell.price < best->price)) best = &cell;
    }
    return best;
  }

  void Finish(ClusterPlan* plan) {
    const ClusterCell* best = Cheapest();
    for (const auto& [sizes, cell] : cells_) {
      if (&cell == best) plan->cheapest = static_cast<int>(plan->cells.size());
      plan->cells.push_back(cell);
    }
    if (best == nullptr) return;
    const auto below = [this](int prefill, int decode) {
      const auto found = cells_.find({prefill, decode});
      return found == cells_.end() ? Bottleneck::kNone : BottleneckOf(found->second);
    };
    plan->without_prefill = below(best->prefill - 1, best->decode);
    plan->without_decode = below(best->prefill, best->decode - 1);
  }

  const Trace& trace_;
  const ClusterQuestion& question_;
  const std::function<void(const ClusterCell&)>& progress_;
  std::map<Sizes, ClusterCell> cells_;
};

}  // namespace

std::string BottleneckText(Bottleneck bottleneck) {
  switch (bottleneck) {
    case Bottleneck::kNone:
      return "nothing";
    case Bottleneck::kPrefillQueue:
      return "first token: prompts wait for their turn to be computed";
    case Bottleneck::kPromptTime:
      return "first token: computing a prompt takes too long once it is begun";
    case Bottleneck::kDecodeSlots:
      return "first token: requests wait for a sequence's place on decode workers";
    case Bottleneck::kDecodeKv:
      return "first token: requests wait for KV blocks of decode workers";
    case Bottleneck::kBatch:
      return "inter-token: steps of decode workers have too many sequences or too much context";
    case Bottleneck::kTransfer:
      return "inter-token: the KV of prompts is too long on its way";
    case Bottleneck::kPreemption:
      return "inter-token: sequences lose their KV blocks to others";
    case Bottleneck::kUnanswered:
      return "requests were given up";
  }
  return "";
}

int LeastPrefillWorkers(const Trace& trace, const Scenario& scenario) {
  if (trace.requests.empty()) return 1;
  std::vector<bool> seen(trace.block_count);
  std::vector<double> work_us;
  for (const SimRequest& request : trace.requests) {
    int depth = 0;
    while (depth < static_cast<int>(request.blocks.size()) && seen[request.blocks[depth]]) ++depth;
    for (int32_t block : request.blocks) seen[block] = true;
    const int cached = CachedTokens(request, depth);
    work_us.push_back(scenario.cost.ChunkUs(cached, request.prompt_tokens - cached));
  }
  std::sort(work_us.begin(), work_us.end());
  work_us.resize(work_us.size() * 99 / 100);
  double sum_us = 0;
  for (double us : work_us) sum_us += us;
  const double arrivals_us =
      static_cast<double>(trace.requests.back().at_us - trace.requests.front().at_us);
  const double time_us = arrivals_us / scenario.speed + scenario.slo_s * 1e6;
  return std::max(1, static_cast<int>(std::ceil(sum_us / std::max(time_us, 1.0))));
}

absl::Status CheckFits(const Trace& trace, const Scenario& scenario) {
  if (trace.requests.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(trace.name, " has no request, expected one or more"));
  }
  const double load_s =
      static_cast<double>(trace.requests.back().at_us - trace.requests.front().at_us) / 1e6 /
      scenario.speed;
  if (load_s > kLongestLoad_s) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s takes %.0f s at speed %g, expected at most %.0f s (a week)", trace.name,
                        load_s, scenario.speed, kLongestLoad_s));
  }
  const int64_t prefill_tokens = int64_t{scenario.cache_blocks} * kSimBlockTokens;
  const int64_t decode_tokens = int64_t{scenario.decode.shape.kv_blocks} * kKvBlockTokens;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const SimRequest& r = trace.requests[i];
    const int64_t all = int64_t{r.prompt_tokens} + std::max(r.output_tokens, 2);
    if (r.prompt_tokens / kSimBlockTokens + 1 > scenario.cache_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("request ", i + 1, " of ", trace.name, " has a prompt of ", r.prompt_tokens,
                       " tokens, but a prefill worker's pool holds ", prefill_tokens));
    }
    if (KvBlocks(all) > scenario.decode.shape.kv_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("request ", i + 1, " of ", trace.name, " has ", all,
                       " tokens, prompt and answer together, but a decode ", "worker's pool holds ",
                       decode_tokens));
    }
  }
  return absl::OkStatus();
}

ClusterCell SimulateCluster(const Trace& trace, const ClusterQuestion& question, int prefill,
                            int decode) {
  ClusterCell cell;
  cell.prefill = prefill;
  cell.decode = decode;
  cell.price = prefill * question.prefill_price + decode * question.decode_price;
  Scenario scenario = question.scenario;
  scenario.workers = prefill;
  scenario.decode.workers = decode;
  scenario.decode.links.assign(prefill,
                               std::vector<double>(decode, question.link_bytes_per_second));
  const bool local = prefill == 0 || question.max_local_prefill_tokens > 0;
  scenario.decode.shape.computes_prompts = local;
  scenario.decode.shape.prompt_cost = scenario.cost;
  cell.result = Simulate(trace, scenario,
                         MakeBatonRouter(LocalPolicy(question.max_local_prefill_tokens),
                                         {.computes_on_decode = local}));
  const CellResult& result = cell.result;
  const bool answered = result.unanswered == 0;
  cell.first_token_holds = answered && result.p99_ttft_s <= scenario.slo_s;
  cell.gap_holds = answered && result.decode.p99_gap_s <= scenario.slo_gap_s;
  if (!cell.first_token_holds) {
    cell.first_token_bottleneck = answered ? FirstTokenBottleneck(result) : Bottleneck::kUnanswered;
  }
  if (!cell.gap_holds && answered) cell.gap_bottleneck = GapBottleneck(result.decode);
  return cell;
}

absl::StatusOr<ClusterPlan> PlanCluster(const Trace& trace, const ClusterQuestion& question,
                                        const std::function<void(const ClusterCell&)>& progress) {
  BATON_RETURN_IF_ERROR(CheckFits(trace, question.scenario));
  return Planner(trace, question, progress).Plan();
}

}  // namespace baton::simulator
