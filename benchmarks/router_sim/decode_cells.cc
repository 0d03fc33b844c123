#include "benchmarks/router_sim/decode_cells.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "simulator/load_generator.h"

namespace baton::simulator::sweeps {
namespace {

// Long enough that what comes before and after the load is full counts little.
constexpr int kRequestsPerWorker = 500;
constexpr int kMostRequests = 8000;
constexpr int kQuickRequestsPerWorker = 300;
constexpr int kBurstPerPair = 24;
constexpr int kRecordedRequests = 1000;
// Room for ten of the generated loads' sequences, or for two of the longest ones of most loads.
constexpr int kTinyPoolBlocks = 400;
// Of a recorded trace's cells: its contexts are ten times as long.
constexpr int kLongPoolBlocks = 65'536;

// Tokens of answers a second, of the whole trace.
double Demand(const Trace& trace) {
  double tokens = 0;
  for (const SimRequest& r : trace.requests) tokens += r.output_tokens;
  const int64_t us = trace.requests.back().at_us - trace.requests.front().at_us;
  return tokens / std::max(static_cast<double>(us) * 1e-6, 1e-6);
}

int LongestRequest(const Trace& trace) {
  int longest = 0;
  for (const SimRequest& r : trace.requests) {
    longest = std::max(longest, r.prompt_tokens + r.output_tokens);
  }
  return longest;
}

class Sweep {
 public:
  explicit Sweep(const DecodeSweepOptions& options) : options_(options) {}

  DecodeSweep Make() {
    const auto poisson = [](const LoadShape& s, int) { return PoissonLoad(s); };
    const auto bursts = [](const LoadShape& s, int workers) {
      return BurstLoad(s, kBurstPerPair * workers / 2);
    };
    const auto sessions = [](const LoadShape& s, int) { return SessionLoad(s); };
    const auto tail = [](const LoadShape& s, int) { return HeavyTailLoad(s); };
    const bool quick = options_.quick;
    const std::vector<int> fleets = quick ? std::vector<int>{2, 8} : std::vector{2, 4, 8, 16, 64};
    const std::vector<int> routers = quick ? std::vector<int>{1, 4} : std::vector{1, 4, 8};
    const std::vector<double> levels =
        quick ? std::vector{0.6, 1.0} : std::vector{0.3, 0.6, 0.85, 1.0};
    Grid(poisson, GpuShape(), fleets, routers, levels);
    Grid(bursts, GpuShape(), fleets, routers, levels);
    Grid(sessions, GpuShape(), fleets, routers, levels);
    if (!quick) Grid(tail, GpuShape(), fleets, routers, levels);
    Grid(poisson, CpuShape(), quick ? std::vector{2} : fleets, {1, 4}, levels);
    if (!quick) Grid(bursts, CpuShape(), {2, 8}, {1, 4}, levels);
    for (const Trace* trace : options_.recorded) Recorded(*trace, routers, levels);
    const std::vector<double> busy = quick ? std::vector{0.6} : std::vector{0.6, 0.85};
    for (double level : busy) {
      Variations(poisson, GpuShape(), level);
      Variations(poisson, CpuShape(), level);
      if (!quick) Variations(sessions, GpuShape(), level);
    }
    return std::move(sweep_);
  }

 private:
  using Load = std::function<Trace(const LoadShape& shape, int workers)>;

  // Takes that share of what the fleet can do. The load is made twice: how long answers are is
  // known after the first time.
  const Trace* Make(const Load& load, const DecodeWorkerShape& shape, int workers, double level) {
    LoadShape of_load;
    of_load.seed = options_.seed;
    of_load.requests = std::min(
        workers * (options_.quick ? kQuickRequestsPerWorker : kRequestsPerWorker), kMostRequests);
    of_load.mean_gap_s = 1;
    const Trace lengths = load(of_load, workers);
    double tokens = 0;
    for (const SimRequest& r : lengths.requests) tokens += r.output_tokens;
    of_load.mean_gap_s = tokens / static_cast<double>(lengths.requests.size()) /
                         (level * workers * TokensPerSecond(shape, lengths));
    return Keep(load(of_load, workers), shape, level);
  }
  const Trace* Keep(Trace trace, const DecodeWorkerShape& shape, double level) {
    trace.name = absl::StrFormat("%s %s %g", trace.name, shape.device, level);
    sweep_.traces.push_back(std::move(trace));
    return &sweep_.traces.back();
  }

  static Cell MakeCell(const Trace* trace, const DecodeWorkerShape& shape, int workers, int routers,
                       uint64_t seed) {
    Cell cell;
    cell.trace = trace;
    cell.scenario.seed = seed;
    cell.scenario.workers = 0;
    cell.scenario.routers = routers;
    cell.scenario.decode.workers = workers;
    cell.scenario.decode.shape = shape;
    return cell;
  }

  void Grid(const Load& load, const DecodeWorkerShape& shape, const std::vector<int>& fleets,
            const std::vector<int>& routers, const std::vector<double>& levels) {
    for (int workers : fleets) {
      for (double level : levels) {
        const Trace* trace = Make(load, shape, workers, level);
        for (int count : routers) {
          sweep_.cells.push_back(MakeCell(trace, shape, workers, count, options_.seed));
        }
      }
    }
  }

  // The beginning of a trace, at the speed that takes that share of the fleet.
  void Recorded(const Trace& whole, const std::vector<int>& routers,
                const std::vector<double>& levels) {
    DecodeWorkerShape shape = GpuShape();
    shape.kv_blocks = kLongPoolBlocks;
    Trace trace;
    trace.name = whole.name;
    trace.block_count = whole.block_count;
    for (const SimRequest& r : whole.requests) {
      if (static_cast<int>(trace.requests.size()) == kRecordedRequests) break;
      trace.requests.push_back(r);
    }
    if (trace.requests.size() < 2 || Demand(trace) == 0) return;
    for (int workers : options_.quick ? std::vector{8} : std::vector{8, 16}) {
      for (double level : levels) {
        const double speed = level * workers * TokensPerSecond(shape, trace) / Demand(trace);
        Trace faster = trace;
        for (SimRequest& r : faster.requests) {
          r.at_us = static_cast<int64_t>(static_cast<double>(r.at_us) / speed);
        }
        const Trace* kept = Keep(std::move(faster), shape, level);
        for (int count : routers) {
          sweep_.cells.push_back(MakeCell(kept, shape, workers, count, options_.seed));
        }
      }
    }
  }

  // What else can differ, one thing at a time.
  void Variations(const Load& load, const DecodeWorkerShape& shape, double level) {
    const Trace* trace = Make(load, shape, 8, level);
    const double third_s = static_cast<double>(trace->requests.back().at_us) * 1e-6 / 3;
    const auto vary = [&](std::string note, auto change) {
      Cell cell = MakeCell(trace, shape, 8, 4, options_.seed);
      cell.note = std::move(note);
      change(&cell.scenario);
      sweep_.cells.push_back(std::move(cell));
    };
    vary("one 3 times slower for 20 s", [&](Scenario* s) {
      s->decode.slow = {{2, third_s, third_s + 20, 3}};
    });
    vary("one cold: first step 1 s", [](Scenario* s) { s->decode.cold = {{2, 1, 1}}; });
    vary("one joins cold at 1/3", [&](Scenario* s) {
      s->decode.outages = {{2, 0, third_s}};
      s->decode.cold = {{2, 1, 1}};
    });
    vary("told 500 ms late", [](Scenario* s) { s->event_delay_us = 500'000; });
    vary("half of them 2 times faster", [](Scenario* s) {
      DecodeWorkerShape fast = s->decode.shape;
      fast.device += " fast";
      fast.cost = {fast.cost.fixed_us / 2, fast.cost.sequence_us / 2,
                   fast.cost.context_token_us / 2};
      s->decode.other_shape = fast;
    });
    DecodeWorkerShape tiny = shape;
    tiny.kv_blocks = kTinyPoolBlocks;
    // So close to the limit that answers outgrow the pool.
    const Trace* for_tiny = Make(load, tiny, 8, level + 0.25);
    Cell cell = MakeCell(for_tiny, tiny, 8, 4, options_.seed);
    cell.note = "tiny KV pools";
    // Conversations do not: each request must fit alone.
    if (LongestRequest(*for_tiny) <= tiny.kv_blocks * kKvBlockTokens) {
      sweep_.cells.push_back(std::move(cell));
    }
    vary("one killed at 1/3, back 5 s later", [&](Scenario* s) {
      s->decode.outages = {{2, third_s, third_s + 5}};
    });
    vary("behind prefill workers", [](Scenario* s) {
      s->workers = 4;
      s->cost = s->decode.ample_prefill;
    });
  }

  const DecodeSweepOptions options_;
  DecodeSweep sweep_;
};

}  // namespace

DecodeWorkerShape GpuShape() {
  DecodeWorkerShape shape;
  shape.device = "gpu";
  shape.cost = {20'000, 50, 0.25};
  shape.kv_blocks = 8192;
  return shape;
}

DecodeWorkerShape CpuShape() {
  DecodeWorkerShape shape;
  shape.device = "cpu";
  shape.cost = {20'000, 3000, 1};
  shape.prior[1] = shape.prior[0] / 8;
  shape.kv_blocks = 8192;
  return shape;
}

double TokensPerSecond(const DecodeWorkerShape& shape, const Trace& trace) {
  double context = 0, steps = 0;
  for (const SimRequest& r : trace.requests) {
    steps += r.output_tokens;
    context += r.output_tokens * (r.prompt_tokens + r.output_tokens / 2.0);
  }
  context /= std::max(steps, 1.0);
  const double held = shape.kv_blocks * static_cast<double>(kKvBlockTokens) / context;
  const double sequences = std::min<double>(shape.max_num_seqs, std::max(held, 1.0));
  return sequences * 1e6 / shape.cost.Us(sequences, sequences * context);
}

DecodeSweep MakeDecodeSweep(const DecodeSweepOptions& options) { return Sweep(options).Make(); }

}  // namespace baton::simulator::sweeps
