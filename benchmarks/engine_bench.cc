// How fast is the engine alone? Prefill tokens/s by prompt length and depth, decode tokens/s by
// batch.
//
//   engine_bench --model DIR [--threads 2] [--dtype auto] [--repeat 3] [--only "decode batch 1"]
//   engine_bench --model DIR --kv-cache-dtypes auto,bfloat16,int8,fp8,int4 [--repeat 5]
//   engine_bench --model DIR --weights auto,int8,int4 [--repeat 5]
//
//   engine_bench --model models/demo --kv-cache-dtypes auto,int8,fp8,int4 --prompts FILE.json
//   engine_bench --model models/demo --weights auto,int8,int4 --prompts FILE.json
//
// The second form measures the formats of KV or of weights in turn, round by round. The third
// compares the log probabilities of prompts' tokens ([{"tokens": [...]}, ...]) with those of the
// first format.
//
//   engine_bench --model DIR --sweep-mib 942 [--repeat 9]
//
// The form above says how near a decode step of one sequence comes to memory's rate: steps and
// sweeps that read so many MiB (those that the weights take, the embedding excepted) in turn.
//
//   engine_bench --model DIR --stages [--repeat 5]
//
// The form above says where the time of prompts and of decode steps goes, and what the last quarter
// of a prompt costs beside the whole: the floor of a prompt whose first three quarters are cached.
//
//   engine_bench --model DIR --fit-steps 400
//
// The form above says how far off the times are that a worker's fit predicts for its decode steps:
// batches of 1 to 16 sequences at random, each predicted before it counts, with and without the
// fit's term for experts.
//
//   engine_bench --model DIR --draft-rows 8 [--repeat 9]
//
// The last form says what drafts cost: steps of 1, 4 and 16 sequences with up to so many drafts
// each, none of which is drawn, as multiples of the step without them, in turn.
//
// The same quantities as llama.cpp's llama-bench (-p 512,2048 -n 128 -d 0,4096) and
// llama-batched-bench (-npp 512 -ntg 64 -npl 1,4,8,16). Prints medians of --repeat runs. Each form
// takes --isa avx2, say, too: as on a CPU with that instruction set at most.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/timed_backend.h"
#include "common/backend/cpu/cpu_backend.h"
#include "common/backend/cpu/isa.h"
#include "common/backend/cpu/thread_pool.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/usable_cores.h"
#include "common/engine/engine.h"
#include "common/worker/step_cost.h"
#include "decode_worker/step_times.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What is in KV does not matter for time, but pages that were never written to would all be one
// page of zeros, which stays in cache.
void FillKv(const backend::KvPool& pool) {
  std::memset(pool.base, 0x3c, static_cast<size_t>(pool.block_count * pool.block_stride_bytes));
}

kv::BlockPool PoolOf(const engine::Engine& engine) {
  return kv::BlockPool(engine.kv_pool().block_count, engine.kv_layout().Shape());
}

kv::BlockLease TakeBlocks(kv::BlockPool& pool, int tokens) {
  const int count = (tokens + 15) / 16;
  return *pool.Acquire(count, kv::BlockUse::kActive, 0, pool.shape().recurrent ? 0 : count);
}

// Places for the states before and behind tokens [begin, end). Their bytes are of no account.
void PlaceStates(int begin, int end, kv::BlockLease& blocks) {
  if (!blocks.shape().recurrent) return;
  blocks.DropWindows(blocks.size());
  for (const int token : {begin - 1, end - 1}) {
    if (token >= 0) blocks.AddWindows(token / 16, token / 16 + 1);
  }
}

// Sequences in blocks that follow one another.
class Bench {
 public:
  Bench(engine::Engine& engine, int max_tokens, int sequences)
      : engine_(engine), pool_(PoolOf(engine)) {
    for (int i = 0; i < sequences; ++i) {
      blocks_.push_back(TakeBlocks(pool_, max_tokens));
    }
    tokens_.resize(max_tokens);
    for (int i = 0; i < max_tokens; ++i) {
      tokens_[i] =
          static_cast<int32_t>((uint64_t{2654435761u} * (i + 1)) % engine.config().token_count);
    }
  }

  // Seconds to compute tokens [begin, end) of one sequence.
  double Prefill(int sequence, int begin, int end) {
    const auto start = Clock::now();
    for (int at = begin; at < end;) {
      const int count = std::min(end - at, engine_.max_num_batched_tokens());
      engine::Batch batch;
      engine::BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(tokens_).subspan(at, count);
      entry.context = at;
      PlaceStates(at, at + count, blocks_[sequence]);
      engine::SetBlocks(blocks_[sequence], &entry, 16);
      entry.sample = at + count == end;
      entry.sampling = &greedy_;
      batch.entries.push_back(entry);
      engine_.Step(batch);
      at += count;
    }
    return SecondsSince(start);
  }

  // Seconds for `steps` decode steps of `batch_size` sequences from `context` on.
  double Decode(int batch_size, int context, int steps, int drafts = 0) {
    const auto start = Clock::now();
    for (int step = 0; step < steps; ++step) {
      engine::Batch batch;
      for (int i = 0; i < batch_size; ++i) {
        engine::BatchEntry entry;
        // Other ones in each sequence: with experts, equal tokens would read the same weights.
        const size_t token = static_cast<size_t>(context + step + 97 * i) % tokens_.size();
        entry.tokens = absl::MakeConstSpan(tokens_).subspan(token, 1);
        entry.context = context + step;
        PlaceStates(context + step, context + step + 1, blocks_[i]);
        entry.drafts = absl::MakeConstSpan(tokens_).subspan(static_cast<size_t>(31 * i),
                                                            static_cast<size_t>(drafts));
        engine::SetBlocks(blocks_[i], &entry, 16);
        entry.sample = true;
        entry.sampling = &greedy_;
        batch.entries.push_back(entry);
      }
      engine_.Step(batch);
    }
    return SecondsSince(start);
  }

 private:
  engine::Engine& engine_;
  const model::SamplingParams greedy_ = {.temperature = 0};
  kv::BlockPool pool_;
  std::vector<kv::BlockLease> blocks_;
  std::vector<int32_t> tokens_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// `only`: the rows whose name contains it.
void Run(engine::Engine& engine, int repeat, const std::string& only) {
  std::printf("%s\n%-38s %12s\n", engine.Description().c_str(), "what", "tokens/s");
  const auto row = [&](const std::string& what, int tokens, auto&& measure) {
    if (!absl::StrContains(what, only)) return;
    measure();  // warms up
    std::vector<double> seconds;
    for (int i = 0; i < repeat; ++i) seconds.push_back(measure());
    std::printf("%-38s %12.1f\n", what.c_str(), tokens / Median(seconds));
    std::fflush(stdout);
  };
  {
    Bench bench(engine, 4096 + 512, 1);
    row("prefill 512", 512, [&] { return bench.Prefill(0, 0, 512); });
    row("prefill 2048", 2048, [&] { return bench.Prefill(0, 0, 2048); });
    row("prefill 512 at depth 4096", 512, [&] { return bench.Prefill(0, 4096, 4608); });
  }
  for (const auto& [batch, context] :
       {std::pair{1, 512}, {4, 512}, {8, 512}, {16, 512}, {1, 4096}, {8, 4096}}) {
    Bench bench(engine, context + 64, batch);
    const int steps = batch == 1 ? 64 : context == 512 ? 32 : 16;
    row(absl::StrCat("decode batch ", batch, " after ", context), batch * steps,
        [&, batch = batch, context = context] { return bench.Decode(batch, context, steps); });
  }
}

void PrintDraftRows(engine::Engine& engine, int most, int repeat) {
  std::printf("%s\n%9s %8s %7s %10s %18s\n", engine.Description().c_str(), "sequences", "context",
              "drafts", "step, ms", "x without drafts");
  for (const auto& [batch, context] : {std::pair{1, 512}, {1, 4096}, {4, 512}, {16, 512}}) {
    constexpr int kSteps = 4;
    Bench bench(engine, context + 128, batch);
    std::vector<std::vector<double>> seconds(static_cast<size_t>(most) + 1);
    std::vector<std::vector<double>> ratios(seconds.size());
    for (int round = -1; round < repeat; ++round) {
      std::vector<double> of_round;
      for (int drafts = 0; drafts <= most; ++drafts) {
        of_round.push_back(bench.Decode(batch, context, kSteps, drafts) / kSteps);
      }
      if (round < 0) continue;  // warms up
      for (size_t i = 0; i < of_round.size(); ++i) {
        seconds[i].push_back(of_round[i]);
        ratios[i].push_back(of_round[i] / of_round[0]);
      }
    }
    for (size_t i = 0; i < seconds.size(); ++i) {
      std::printf("%9d %8d %7d %10.3f %18.2f\n", batch, context, static_cast<int>(i),
                  Median(seconds[i]) * 1e3, Median(ratios[i]));
    }
  }
}

// Decode steps of random batches: each is predicted, then added to the fit.
void PrintFitErrors(engine::Engine& engine, int steps) {
  constexpr int kMostSequences = 16;
  constexpr int kLearn = 100;
  constexpr int kMaxTokens = 1024;
  const decode_worker::DecodeShape shape =
      decode_worker::DecodeShapeOf(engine.config(), /*on_gpu=*/false);
  worker::StepCost::Terms without_experts = shape.costs;
  without_experts[0] += shape.experts.experts * shape.costs[3];
  without_experts[3] = 0;
  worker::StepCost fits[] = {worker::StepCost(without_experts), worker::StepCost(shape.costs)};
  Bench bench(engine, kMaxTokens, kMostSequences);
  std::mt19937_64 random(1);  // NOLINT: the same batches in every run
  std::vector<double> errors[kMostSequences + 1][2];
  auto now = absl::Hours(1);
  for (int step = 0; step < steps; ++step) {
    const int batch = 1 + static_cast<int>(random() % kMostSequences);
    const int context = 64 + static_cast<int>(random() % (kMaxTokens - 65));
    const double seconds = bench.Decode(batch, context, 1);
    now += absl::Seconds(seconds);
    for (int i = 0; i < 2; ++i) {
      const worker::StepCost::Terms work = {1, static_cast<double>(batch),
                                            static_cast<double>(batch) * context,
                                            i == 0 ? 0 : shape.experts.Distinct(batch)};
      // By the fit alone, as of a worker that has been idle: the pace hides what the fit misses.
      const double predicted = fits[i].Seconds(work, now + absl::Hours(1));
      if (step >= kLearn) errors[batch][i].push_back(predicted / seconds - 1);
      fits[i].AddStep(work, absl::Seconds(seconds), now);
    }
  }
  std::printf("%s\n%9s %26s %26s\n", engine.Description().c_str(), "sequences",
              "without experts: error, %", "with experts: error, %");
  for (int batch = 1; batch <= kMostSequences; ++batch) {
    if (errors[batch][0].empty()) continue;
    std::printf("%9d %26.1f %26.1f\n", batch, 100 * Median(errors[batch][0]),
                100 * Median(errors[batch][1]));
  }
}

struct Measured {
  std::string what;
  int tokens;
  std::function<double(Bench&)> seconds;
};

// Reads all of the memory with every thread.
double SecondsOfSweep(backend::ThreadPool& pool, const backend::Buffer& memory) {
  constexpr size_t kTaskWords = (size_t{1} << 20) / sizeof(uint64_t);
  const auto* words = static_cast<const uint64_t*>(memory.data());
  const auto start = Clock::now();
  pool.Run(static_cast<int>(memory.size_bytes() / sizeof(uint64_t) / kTaskWords),
           [&](int task, int thread) {
             uint64_t sums[8] = {};
             const uint64_t* at = words + static_cast<size_t>(task) * kTaskWords;
             for (size_t i = 0; i < kTaskWords; i += 8) {
               __builtin_prefetch(at + i + 512);
               for (size_t lane = 0; lane < 8; ++lane) sums[lane] += at[i + lane];
             }
             uint64_t sum = 0;
             for (const uint64_t each : sums) sum += each;
             volatile uint64_t kept = sum;  // so that the loop is not left out
             (void)kept;
           });
  return SecondsSince(start);
}

void CompareWithSweep(engine::Engine& engine, const backend::BackendOptions& options,
                      int64_t sweep_mib, int repeat) {
  auto backend = backend::MakeCpuBackend(options);
  BATON_CHECK(backend.ok()) << backend.status();
  auto memory = (*backend)->Allocate(static_cast<size_t>(sweep_mib) << 20);
  BATON_CHECK(memory.ok()) << memory.status();
  std::memset((*memory)->data(), 1, (*memory)->size_bytes());
  backend::ThreadPool pool(options.thread_count > 0 ? options.thread_count : UsableCores());
  Bench bench(engine, 64, 1);
  bench.Prefill(0, 0, 16);
  std::vector<double> steps, sweeps, shares;
  for (int round = 0; round < repeat; ++round) {
    for (int i = 0; i < 16; ++i) {
      steps.push_back(bench.Decode(1, 16 + i, 1));
      sweeps.push_back(SecondsOfSweep(pool, **memory));
      shares.push_back(sweeps.back() / steps.back());
    }
  }
  const double mean =
      std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
  std::printf(
      "%s\n%zu decode steps and sweeps of %d MiB in turn, medians: step %.3f ms (mean %.3f), "
      "sweep %.3f ms (%.1f GB/s), sweep / step %.3f\n",
      engine.Description().c_str(), steps.size(), static_cast<int>(sweep_mib), Median(steps) * 1e3,
      mean * 1e3, Median(sweeps) * 1e3,
      static_cast<double>((*memory)->size_bytes()) / Median(sweeps) * 1e-9, Median(shares));
}

// Runs `measure` `repeat` times and prints the stages of the run in the middle.
double PrintStages(benchmarks::StageTimes& times, const std::string& what, int repeat,
                   const std::function<double()>& measure) {
  struct Timed {
    double seconds;
    std::map<std::string, benchmarks::StageTimes::Stage> stages;
  };
  std::vector<Timed> runs;
  for (int i = 0; i < repeat; ++i) {
    times.Clear();
    const double seconds = measure();
    runs.push_back({seconds, times.stages()});
  }
  std::sort(runs.begin(), runs.end(),
            [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
  const Timed& middle = runs[runs.size() / 2];
  std::printf("\n%s: %.2f ms\n", what.c_str(), middle.seconds * 1e3);
  double rest = middle.seconds;
  for (const auto& [name, stage] : middle.stages) {
    rest -= stage.seconds;
    std::printf("  %-28s %9.3f ms %5.1f %%", name.c_str(), stage.seconds * 1e3,
                100 * stage.seconds / middle.seconds);
    if (stage.operations > 0) {
      std::printf("  %7.1f GFLOP/s %6.1f GB/s", stage.operations / stage.seconds * 1e-9,
                  stage.bytes / stage.seconds * 1e-9);
    }
    std::printf("\n");
  }
  std::printf("  %-28s %9.3f ms %5.1f %%\n", "rest: the draw, the host's work", rest * 1e3,
              100 * rest / middle.seconds);
  std::fflush(stdout);
  return middle.seconds;
}

void PrintStages(engine::Engine& engine, benchmarks::StageTimes& times, int repeat) {
  std::printf("%s\n", engine.Description().c_str());
  {
    Bench bench(engine, 2048, 1);
    for (const int tokens : {1024, 2048}) {
      const std::string prompt = absl::StrCat("prompt of ", tokens);
      const double whole =
          PrintStages(times, prompt, repeat, [&] { return bench.Prefill(0, 0, tokens); });
      const double last = PrintStages(times, absl::StrCat(prompt, ", the last quarter"), repeat,
                                      [&] { return bench.Prefill(0, tokens * 3 / 4, tokens); });
      std::printf("  the last quarter is %.3f of the whole: %.2f of its share of tokens\n",
                  last / whole, 4 * last / whole);
    }
  }
  for (const auto& [batch, context] : {std::pair{1, 512}, {16, 512}, {8, 4096}}) {
    Bench bench(engine, context + 1, batch);
    PrintStages(times, absl::StrCat("decode step of ", batch, " after ", context), 8 * repeat,
                [&, batch = batch, context = context] { return bench.Decode(batch, context, 1); });
  }
}

struct Column {
  std::string name;
  std::unique_ptr<engine::Engine> engine;
};

// One column an engine; of each, medians of the rounds.
void RunInTurn(const std::vector<Column>& columns, int repeat, const std::string& only) {
  constexpr int kDepth = 4096, kSteps = 16, kBatch = 8;
  std::vector<std::unique_ptr<Bench>> benches;
  std::printf("%-28s", "tokens/s");
  for (const Column& column : columns) {
    std::printf(" %10s", column.name.c_str());
    benches.push_back(std::make_unique<Bench>(*column.engine, kDepth + 2 * kSteps, kBatch));
  }
  std::printf("\n");
  const Measured rows[] = {
      {"prefill 2048", 2048, [](Bench& b) { return b.Prefill(0, 0, 2048); }},
      {"prefill 512 at depth 3584", 512, [](Bench& b) { return b.Prefill(0, 3584, 4096); }},
      {"decode batch 1 after 4096", kSteps, [](Bench& b) { return b.Decode(1, kDepth, kSteps); }},
      {"decode batch 8 after 512", kBatch * kSteps,
       [](Bench& b) { return b.Decode(kBatch, 512, kSteps); }},
      {"decode batch 8 after 4096", kBatch * kSteps,
       [](Bench& b) { return b.Decode(kBatch, kDepth, kSteps); }},
  };
  for (const Measured& row : rows) {
    if (!absl::StrContains(row.what, only)) continue;
    std::vector<std::vector<double>> seconds(benches.size());
    for (int round = 0; round < repeat; ++round) {
      for (size_t i = 0; i < benches.size(); ++i) seconds[i].push_back(row.seconds(*benches[i]));
    }
    std::printf("%-28s", row.what.c_str());
    for (const std::vector<double>& each : seconds)
      std::printf(" %10.1f", row.tokens / Median(each));
    std::printf("\n");
    std::fflush(stdout);
  }
}

// Log probabilities of the prompt's tokens, the first excepted.
std::vector<double> LogprobsOf(engine::Engine& engine, const std::vector<int32_t>& tokens) {
  kv::BlockPool pool = PoolOf(engine);
  kv::BlockLease blocks = TakeBlocks(pool, static_cast<int>(tokens.size()));
  PlaceStates(0, static_cast<int>(tokens.size()), blocks);
  model::SamplingParams greedy = {.temperature = 0};
  engine::BatchEntry entry;
  entry.tokens = tokens;
  engine::SetBlocks(blocks, &entry, 16);
  entry.prompt_logprobs = 0;
  entry.targets = absl::MakeConstSpan(tokens).subspan(1);
  entry.sampling = &greedy;
  const std::vector<engine::StepResult> results = engine.Step({.entries = {entry}});
  BATON_CHECK(results[0].prompt_logprobs.ok()) << results[0].prompt_logprobs.status();
  std::vector<double> logprobs;
  for (const model::SampledToken& token : *results[0].prompt_logprobs) {
    logprobs.push_back(token.logprob);
  }
  return logprobs;
}

void CompareLogprobs(const std::vector<Column>& columns, const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json prompts = nlohmann::json::parse(file);
  std::printf("%-10s %12s %12s %12s\n", "format", "mean |dlogp|", "largest", "mean logp");
  std::vector<double> first;
  for (const Column& column : columns) {
    std::vector<double> all;
    for (const auto& prompt : prompts) {
      const auto logprobs =
          LogprobsOf(*column.engine, prompt["tokens"].get<std::vector<int32_t>>());
      all.insert(all.end(), logprobs.begin(), logprobs.end());
    }
    if (first.empty()) first = all;
    double sum = 0, error = 0, largest = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const double difference = std::abs(all[i] - first[i]);
      sum += all[i];
      error += difference;
      largest = std::max(largest, difference);
    }
    const auto count = static_cast<double>(all.size());
    std::printf("%-10s %12.5f %12.4f %12.4f\n", column.name.c_str(), error / count, largest,
                sum / count);
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Engine benchmark");
  engine::EngineOptions options;
  std::string dtype = "auto";
  int repeat = 3;
  app.add_option("--model", options.model_dir)->required();
  app.add_option("--threads", options.backend.thread_count);
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"auto", "float32", "bfloat16"}));
  app.add_flag("--dequantize-weights", options.backend.dequantize_weights);
  app.add_flag("--share-kv-pool", options.share_kv_pool, "as --kv-transport shm does");
  app.add_option("--repeat", repeat)->check(CLI::Range(1, 100));
  std::vector<std::string> kv_dtypes;
  app.add_option("--kv-cache-dtypes", kv_dtypes)
      ->delimiter(',')
      ->check(CLI::IsMember({"auto", "bfloat16", "int8", "fp8", "int4"}));
  std::vector<std::string> weights;
  app.add_option("--weights", weights)
      ->delimiter(',')
      ->check(CLI::IsMember({"auto", "int8", "int4"}));
  std::string prompts;
  app.add_option("--prompts", prompts);
  int64_t sweep_mib = 0;
  app.add_option("--sweep-mib", sweep_mib)->check(CLI::Range(1, 1 << 20));
  std::string only;
  app.add_option("--only", only, "Of the first two forms, the rows whose name contains this");
  bool stages = false;
  app.add_flag("--stages", stages);
  int fit_steps = 0, draft_rows = 0;
  app.add_option("--fit-steps", fit_steps)->check(CLI::Range(101, 1 << 20));
  app.add_option("--draft-rows", draft_rows)->check(CLI::Range(1, 32));
  std::map<std::string, const backend::Kernels*> kernels_by_name;
  for (const backend::Kernels* each : backend::UsableKernels()) kernels_by_name[each->name] = each;
  std::string isa = backend::KernelsOf(backend::BestIsa()).name;
  app.add_option("--isa", isa, "As on a CPU with this instruction set at most")
      ->check(CLI::IsMember(kernels_by_name));
  CLI11_PARSE(app, argc, argv);
  benchmarks::StageTimes times;
  options.make_backend =
      [&](const backend::BackendOptions& of) -> absl::StatusOr<std::unique_ptr<backend::Backend>> {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<backend::Backend> inner,
                           backend::MakeCpuBackend(of, *kernels_by_name.at(isa)));
    if (!stages) return inner;
    return std::make_unique<benchmarks::TimedBackend>(std::move(inner), &times);
  };
  if (dtype == "float32") options.backend.compute = backend::BackendOptions::Compute::kF32;
  if (dtype == "bfloat16") options.backend.compute = backend::BackendOptions::Compute::kBF16;
  if (prompts.empty()) options.max_model_len = 8192;
  options.max_num_batched_tokens = 512;
  options.max_num_seqs = 16;
  options.num_blocks = 8 * (4096 + 64) / 16;
  if (!kv_dtypes.empty() && weights.size() > 1) {
    std::fprintf(stderr, "--kv-cache-dtypes takes one --weights\n");
    return 1;
  }
  std::vector<Column> columns;
  const bool by_weights = weights.size() > 1 || kv_dtypes.empty();
  if (weights.empty()) weights = {"auto"};
  for (const std::string& name : by_weights ? weights : kv_dtypes) {
    const std::string& of_weights = by_weights ? name : weights.front();
    options.weight_bits = of_weights == "int8" ? 8 : of_weights == "int4" ? 4 : 0;
    if (!by_weights) options.kv_dtype = kv::ParseKvDtype(name);
    absl::StatusOr<std::unique_ptr<engine::Engine>> engine = engine::Engine::Load(options);
    if (!engine.ok()) {
      std::fprintf(stderr, "%s\n", engine.status().ToString().c_str());
      return 1;
    }
    if (prompts.empty()) FillKv((*engine)->kv_pool());
    columns.push_back({name, *std::move(engine)});
  }
  if (!prompts.empty()) {
    CompareLogprobs(columns, prompts);
  } else if (stages) {
    PrintStages(*columns.front().engine, times, repeat);
  } else if (fit_steps > 0) {
    PrintFitErrors(*columns.front().engine, fit_steps);
  } else if (draft_rows > 0) {
    PrintDraftRows(*columns.front().engine, draft_rows, repeat);
  } else if (sweep_mib > 0) {
    CompareWithSweep(*columns.front().engine, options.backend, sweep_mib, repeat);
  } else if (kv_dtypes.empty() && columns.size() == 1) {
    Run(*columns.front().engine, repeat, only);
  } else {
    RunInTurn(columns, repeat, only);
  }
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
