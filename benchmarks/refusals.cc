// How fast a router refuses over HTTP: closed-loop clients, several times as many as it admits,
// each of which waits as long as Retry-After says, or, with --longest-wait-s, less.
//
//   refusals --model DIR [--admitted 64] [--times 5] [--seconds 20] [--longest-wait-s 1]
//
// The workers run at the lowest priority: on a machine of their own they would not take CPU time
// from the router. The goal: p99 of the time to a 429 <= 50 ms.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "cli/bench/target.h"
#include "common/base/error.h"

namespace baton::benchmarks {
namespace {

constexpr int kLowest = 19;
constexpr double kStartS = 1;  // the clients start within it
constexpr int kClientThreads = 16;

struct Options {
  ClusterOptions cluster;
  int admitted = 64;
  double times = 5;
  double seconds = 20;
  double warm_up_s = 5;
  double longest_wait_s = 60;
  int prompt_tokens = 64;
  int answer_tokens = 64;
  uint64_t seed = 1;
};

// When which client sends its next request. Thread-safe.
class Clients {
 public:
  Clients(int count, double end_s, double longest_wait_s, uint64_t seed)
      : end_s_(end_s), longest_wait_s_(longest_wait_s), random_(seed) {
    const double begin_s = NowSeconds();
    for (int i = 0; i < count; ++i) due_.push({begin_s + kStartS * random_.Uniform(), i});
  }

  // Blocks until the next client is due. Null once the time is over.
  std::optional<int> Next() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      const double now_s = NowSeconds();
      if (now_s >= end_s_) return std::nullopt;
      if (!due_.empty() && due_.top().first <= now_s) {
        const int client = due_.top().second;
        due_.pop();
        return client;
      }
      added_ = false;
      const double wake_s = due_.empty() ? end_s_ : std::min(due_.top().first, end_s_);
      mutex_.AwaitWithTimeout(absl::Condition(&added_), absl::Seconds(wake_s - now_s));
    }
  }

  void Ended(const Outcome& outcome) {
    const absl::Duration wait = ErrorRetryAfter(outcome.status).value_or(absl::ZeroDuration());
    double wait_s = absl::ToDoubleSeconds(wait);
    absl::MutexLock lock(&mutex_);
    // Equal waits would keep clients together that once were.
    if (wait_s > longest_wait_s_) wait_s = longest_wait_s_ * (1 - random_.Uniform() / 2);
    due_.push({outcome.ended_s + wait_s, outcome.kind});
    added_ = true;
  }

 private:
  using Due = std::pair<double, int>;
  const double end_s_, longest_wait_s_;
  absl::Mutex mutex_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_ ABSL_GUARDED_BY(mutex_);
  bool added_ ABSL_GUARDED_BY(mutex_) = false;
};

// All threads that a process has, and those that they start.
void Renice(pid_t pid, int nice) {
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    int thread = 0;
    if (!absl::SimpleAtoi(task.path().filename().string(), &thread)) continue;
    setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice);
  }
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int Run(Options options) {
  ClusterOptions& cluster_options = options.cluster;
  cluster_options.http_listen = "127.0.0.1:0";
  AppendFlags(absl::StrCat("--max-inflight-requests ", options.admitted),
              &cluster_options.router_flags);
  const std::unique_ptr<LocalCluster> cluster = StartCluster(cluster_options);
  for (const std::string& worker : cluster->workers()) Renice(cluster->pid(worker), kLowest);
  LoadGenerator grpc({cluster->address("router")});
  const int vocab_size = VocabSizeOf(&grpc);
  cli::TargetOptions target_options;
  target_options.backend = "openai";
  target_options.base_url = absl::StrCat("http://", cluster->http_address("router"));
  target_options.ignore_eos = true;
  // curl's work for each answer grows with the requests of its thread.
  std::vector<std::unique_ptr<cli::BenchTarget>> targets;
  for (int i = 0; i < kClientThreads; ++i) {
    targets.push_back(cli::MakeTarget(target_options));
    if (const auto model = targets.back()->Connect(); !model.ok()) Die(model.status());
  }

  const int count = static_cast<int>(options.times * options.admitted);
  Random random(options.seed);
  const double begin_s = NowSeconds(), end_s = begin_s + options.seconds;
  Clients clients(count, end_s, options.longest_wait_s, options.seed + 1);
  cli::OpenLoopOptions loop;
  loop.on_end = [&](const Outcome& outcome) { clients.Ended(outcome); };
  const double cpu_s = CpuSeconds();
  const std::vector<Outcome> outcomes = cli::RunOpenLoop(
      [&]() -> std::optional<cli::TimedSend> {
        const std::optional<int> client = clients.Next();
        if (!client) return std::nullopt;
        cli::BenchPrompt prompt;
        prompt.output_tokens = options.answer_tokens;
        prompt.token_ids = random.Tokens(options.prompt_tokens, vocab_size);
        return cli::TimedSend{NowSeconds() - begin_s,
                              [&targets, prompt, client = *client](double due_s, auto done) {
                                targets[static_cast<size_t>(client) % targets.size()]->Send(
                                    prompt, client, due_s, std::move(done));
                              }};
      },
      loop);
  const double client_cores = (CpuSeconds() - cpu_s) / (NowSeconds() - begin_s);
  LevelFigures f = Summarize(outcomes, Slo{1e9, 1e9}, begin_s + options.warm_up_s, end_s);
  f.multiple = options.times;
  std::printf(
      "%d clients, %d requests admitted at once, prompts of %d tokens, answers of %d; %.0f s, of "
      "which the first %.0f s are not counted; seed %llu.\n\n"
      "| refused | with a time to retry | median time to retry | time to a 429, p50 | p99 | "
      "answered | TTFT p50 | p99 | failed | sent late, p99 | client's CPU |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n"
      "| %.0f/s | %d of %d | %.1f s | %.1f ms | **%.1f ms** | %.0f/s | %.0f ms | %.0f ms | %d | "
      "%.1f ms | %.2f cores |\n",
      count, options.admitted, options.prompt_tokens, options.answer_tokens, options.seconds,
      options.warm_up_s, static_cast<unsigned long long>(options.seed), f.refused / f.window_s,
      f.refused_with_retry, f.refused, f.retry_p50_ms / 1e3, f.refusal_p50_ms, f.refusal_p99_ms,
      f.answered / f.window_s, f.ttft_p50_ms, f.ttft_p99_ms, f.failed + f.expired,
      f.send_lag_p99_ms, client_cores);
  std::printf("\n%s", ReasonTable({f}).c_str());
  if (absl::Status status = cluster->CheckAlive(); !status.ok()) Die(status);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Time to a 429 over HTTP at several times the admitted load");
  app.option_defaults()->always_capture_default();
  Options options;
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  app.add_option("--admitted", options.admitted, "Requests that the router admits at once")
      ->check(CLI::Range(1, 4096));
  app.add_option("--times", options.times, "Clients for each of them")->check(CLI::Range(1., 100.));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(1., 86'400.));
  app.add_option("--warm-up-s", options.warm_up_s, "Not counted")->check(CLI::NonNegativeNumber);
  app.add_option("--longest-wait-s", options.longest_wait_s,
                 "Where Retry-After is longer (30 s at most), clients wait for half to all of this")
      ->check(CLI::PositiveNumber);
  app.add_option("--prompt-tokens", options.prompt_tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--answer-tokens", options.answer_tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  return Run(std::move(options));
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
