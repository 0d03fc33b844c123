// How much of a prefill worker's rate is left while it sends the KV of its prompts? A cluster of
// real processes on loopback whose workers compute on paced GPUs (tests/testing/paced_gpu.h): a
// kernel takes its time and no core. It asks for answers of one token, which the prefill worker
// gives itself, and of two, for which all KV goes to the decode worker. Goal: 0.9.
//
//   prefill_rate --model models/demo [--shapes 0.5b,7b] [--kernel-us 100,40,10]
//
// The model has the layers and the KV of a shape, the tokenizer of --model, and tiny matrices: what
// its kernels take is given. Steps have as many tokens as a prompt. Rounds of both answers
// alternate; a figure is their median. The last columns say how much the processes compute beside
// the device.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "benchmarks/gpu/random_checkpoint.h"
#include "benchmarks/kv_shapes.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/paced_programs.h"
#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {
namespace {

constexpr int kVocabulary = 1024;  // of models/demo

struct Options {
  ClusterOptions cluster;
  std::vector<std::string> shapes = {"0.5b"}, transports = {"grpc", "ipc"};
  std::vector<double> kernel_us = {100, 40, 10};
  double node_us = 4, copy_us = 10, host_gb_s = 12, peer_gb_s = 100, memory_gb = 1,
         decode_memory_gb = 1;
  int prompt_tokens = 512, at_once = 16, cached = 0, rounds = 5;
  double round_s = 3;
};

const KvShape& ShapeNamed(const std::string& name) {
  for (const KvShape& shape : kKvShapes) {
    if (shape.name == name) return shape;
  }
  Die(absl::InvalidArgumentError(
      absl::StrCat("--shapes: \"", name, "\" given, expected demo, 0.5b, 1.5b or 7b")));
}

std::unique_ptr<gpu_bench::RandomCheckpoint> ModelOf(const KvShape& shape,
                                                     const std::string& tokenizer_dir) {
  gpu_bench::ModelShape model;
  model.name = shape.name;
  model.layers = shape.layers;
  model.query_heads = model.kv_heads = shape.kv_heads;
  model.head_dim = shape.head_dim;
  model.hidden = shape.kv_heads * shape.head_dim;
  model.ffn = 128;
  model.vocab = kVocabulary;
  model.tied_embeddings = true;
  auto checkpoint = gpu_bench::RandomCheckpoint::Write(model, "/tmp");
  if (!checkpoint.ok()) Die(checkpoint.status());
  std::error_code error;
  std::filesystem::create_symlink(std::filesystem::absolute(tokenizer_dir) / "tokenizer.json",
                                  std::filesystem::path((*checkpoint)->folder()) / "tokenizer.json",
                                  error);
  if (error) Die(absl::UnavailableError((*checkpoint)->folder() + ": " + error.message()));
  return *std::move(checkpoint);
}

// The processor time of a process since its start.
double CpuSeconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  // Behind the program's name, which may have anything in it.
  std::istringstream fields(text.str().substr(text.str().rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

struct Rate {
  double prompts_s = 0, kv_gb_s = 0;
  double prefill_cores = 0, decode_cores = 0;
};

// The prompts of a round: random ones, or of a few that the prefill worker has cached.
class Prompts {
 public:
  Prompts(const Options& options, uint64_t seed) : options_(options), random_(seed) {
    Random of_all_rounds(0);
    for (int i = 0; i < options.cached; ++i) cached_.push_back(Draw(&of_all_rounds));
  }
  std::vector<int32_t> Next() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (cached_.empty()) return Draw(&random_);
    return cached_[static_cast<size_t>(next_++ % options_.cached)];
  }

 private:
  std::vector<int32_t> Draw(Random* random) const {
    return random->Tokens(options_.prompt_tokens, kVocabulary);
  }
  const Options& options_;
  std::vector<std::vector<int32_t>> cached_;
  absl::Mutex mutex_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
};

Rate Measure(const Options& options, int answer_tokens, uint64_t seed, LocalCluster& cluster,
             LoadGenerator& client) {
  Prompts prompts(options, seed);
  const auto computed = [&](const char* worker) { return CpuSeconds(cluster.pid(worker)); };
  const double prefill_s = computed("prefill-0"), decode_s = computed("decode-0");
  const double begin_s = NowSeconds();
  std::atomic<int64_t> answers{0}, kv_bytes{0};
  client.RunClosedLoop(
      options.at_once,
      [&](int) -> std::optional<LoadRequest> {
        if (NowSeconds() >= begin_s + options.round_s) return std::nullopt;
        LoadRequest request = MakeRequest(prompts.Next(), answer_tokens);
        request.timeout = absl::Minutes(5);
        return request;
      },
      [&](int, const Outcome& outcome) {
        if (!outcome.status.ok()) Die(outcome.status);
        ++answers;
        kv_bytes += outcome.usage.kv_bytes();
      });
  const double seconds = NowSeconds() - begin_s;
  return {static_cast<double>(answers) / seconds, static_cast<double>(kv_bytes) / 1e9 / seconds,
          (computed("prefill-0") - prefill_s) / seconds,
          (computed("decode-0") - decode_s) / seconds};
}

double MedianOf(const std::vector<Rate>& rates, double Rate::*figure) {
  std::vector<double> values;
  for (const Rate& rate : rates) values.push_back(rate.*figure);
  return Percentile(values, 0.5);
}

void Compare(const Options& options, const KvShape& shape, double kernel_us,
             const std::string& transport) {
  const auto model = ModelOf(shape, options.cluster.model_dir);
  ClusterOptions cluster_options = options.cluster;
  cluster_options.model_dir = model->folder();
  AppendFlags("--max-local-prefill-tokens 0", &cluster_options.router_flags);
  AppendFlags("--local-prefill-max-tokens 0", &cluster_options.decode_flags);
  AppendFlags(absl::StrCat("--kv-transport ", transport, " --max-num-batched-tokens ",
                           options.prompt_tokens),
              &cluster_options.worker_flags);
  const auto device = [&](double memory_gb) {
    return absl::StrCat("--device-gpu ", kernel_us, ",", options.node_us, ",", options.copy_us, ",",
                        options.host_gb_s, ",", options.peer_gb_s, ",", memory_gb);
  };
  AppendFlags(device(options.memory_gb), &cluster_options.prefill_flags);
  AppendFlags(device(options.decode_memory_gb), &cluster_options.decode_flags);
  const auto cluster = StartCluster(cluster_options);
  LoadGenerator client(std::vector<std::string>{cluster->address("router")});
  std::vector<Rate> without, with;
  uint64_t seed = 1;
  for (int round = 0; round <= options.rounds; ++round) {
    const Rate one = Measure(options, 1, seed++, *cluster, client);
    const Rate two = Measure(options, 2, seed++, *cluster, client);
    if (round == 0) continue;  // warms up connections, code and clocks
    without.push_back(one);
    with.push_back(two);
  }
  const double alone = MedianOf(without, &Rate::prompts_s), sent = MedianOf(with, &Rate::prompts_s);
  std::printf("| %s | %g | %s | %.0f | %.0f | %.2f | %.2f | %.2f, %.2f | %.2f |\n", shape.name,
              kernel_us, transport.c_str(), alone * options.prompt_tokens,
              sent * options.prompt_tokens, sent / alone, MedianOf(with, &Rate::kv_gb_s),
              MedianOf(without, &Rate::prefill_cores), MedianOf(with, &Rate::prefill_cores),
              MedianOf(with, &Rate::decode_cores));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  CLI::App app("A prefill worker's rate with transfers beside its rate without, on paced GPUs");
  Options options;
  app.option_defaults()->always_capture_default();
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  app.add_option("--shapes", options.shapes, "Of demo, 0.5b, 1.5b, 7b")->delimiter(',');
  app.add_option("--transports", options.transports, "Of grpc, ipc")->delimiter(',');
  app.add_option("--kernel-us", options.kernel_us, "What a prompt's kernel takes")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--node-us", options.node_us, "A node of a decode step")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--copy-us", options.copy_us, "Each copy, beside its bytes")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--host-gb-s", options.host_gb_s, "Between device and host")
      ->check(CLI::Range(0.01, 1e4));
  app.add_option("--peer-gb-s", options.peer_gb_s, "Between devices")->check(CLI::Range(0.01, 1e4));
  app.add_option("--memory-gb", options.memory_gb, "Of the prefill worker's device")
      ->check(CLI::Range(0.1, 100.0));
  app.add_option("--decode-memory-gb", options.decode_memory_gb, "Of the decode worker's")
      ->check(CLI::Range(0.1, 100.0));
  app.add_option("--cached", options.cached,
                 "So many prompts come in turn, which the prefill worker has in its memory; the "
                 "decode worker's should be too small for them. 0: all are new")
      ->check(CLI::Range(0, 4096));
  app.add_option("--prompt-tokens", options.prompt_tokens)->check(CLI::Range(16, 16384));
  app.add_option("--at-once", options.at_once, "Requests")->check(CLI::Range(1, 4096));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 100));
  app.add_option("--round-s", options.round_s)->check(CLI::Range(0.1, 600.0));
  CLI11_PARSE(app, argc, argv);
  const auto programs = PacedPrograms(options.cluster.bin_dir, "baton-paced-gpu");
  options.cluster.bin_dir = programs->path();
  std::printf(
      "%s prompts of %d tokens, %d at once. A node of a decode step takes %g us; a copy %g us and "
      "its bytes at %g GB/s to or from the host, %g from device to device.\n\n"
      "| KV of | kernel, us | transport | prompt tokens/s without transfers | with | ratio | KV, "
      "GB/s | cores of the prefill worker: without, with | of the decode worker |\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      options.cached > 0 ? "Cached" : "New", options.prompt_tokens, options.at_once,
      options.node_us, options.copy_us, options.host_gb_s, options.peer_gb_s);
  std::fflush(stdout);
  for (const std::string& shape : options.shapes) {
    for (const double kernel_us : options.kernel_us) {
      for (const std::string& transport : options.transports) {
        Compare(options, ShapeNamed(shape), kernel_us, transport);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
