// What 2,000 open connections or silent streams cost a router: threads, memory, and the time of a
// new request beside them.
//
//   open_streams --model DIR [--count 2000] [--probes 1000] [--rounds 2]
//
// A router process and, in this process, a decode worker without a model: it answers new requests
// at once, and holds the others after their first token with a sign of life a second, as a decode
// worker does whose sequences wait. Each kind of connection gets a new router.
#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "cli/bench/target.h"
#include "common/base/resident_memory.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/http_client.h"

namespace baton::benchmarks {
namespace {

using cli::BenchTarget;
using DecodeResponse = internal::v1::DecodeResponse;

constexpr int kToken = 64;
constexpr int kHeldTokens = 2;  // max_tokens of a request that is held; 1: of one that is not
// A second after the last message of each, as a decode worker: at other moments for streams that
// were opened at others. All at once would be a burst of the load generator's own.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr size_t kTurns = 100;  // in which the streams get one each

struct Options {
  ClusterOptions cluster;
  int count = 2000;
  int probes = 1000;
  int connections = 1;
  int rounds = 1;
};

class HoldingWorker {
 public:
  explicit HoldingWorker(uint64_t tokenizer_fingerprint)
      : worker_(testing::FakeCard(v1::WORKER_ROLE_DECODE, tokenizer_fingerprint)) {
    worker_.SetReply([this](testing::DecodeCall call) { Reply(std::move(call)); });
    heartbeats_ = std::thread([this] { SendHeartbeats(); });
  }
  ~HoldingWorker() {
    stop_.Notify();
    heartbeats_.join();
  }

  const std::string& address() const { return worker_.address(); }

  void AwaitHeld(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto held = [&] {
      mutex_.AssertReaderHeld();
      return held_.size() == count;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&held), absl::Minutes(2))) {
      Die(absl::DeadlineExceededError(absl::StrCat("only ", held_.size(), " streams are open")));
    }
  }

  // Ends all that are held.
  void Release() {
    absl::MutexLock lock(&mutex_);
    for (testing::DecodeCall& call : held_) call.Finish({kToken}, DecodeResponse::FINISH_LENGTH);
    held_.clear();
  }

 private:
  void Reply(testing::DecodeCall call) {
    if (call.request.max_tokens() != kHeldTokens) {
      return call.Finish({kToken}, DecodeResponse::FINISH_LENGTH);
    }
    call.SendTokens({kToken});
    absl::MutexLock lock(&mutex_);
    held_.push_back(std::move(call));
  }

  void SendHeartbeats() {
    for (size_t turn = 0; !stop_.WaitForNotificationWithTimeout(kHeartbeat / kTurns); ++turn) {
      absl::MutexLock lock(&mutex_);
      for (size_t i = turn % kTurns; i < held_.size(); i += kTurns) {
        held_[i].stream->Send(DecodeResponse());
      }
    }
  }

  absl::Mutex mutex_;
  std::vector<testing::DecodeCall> held_ ABSL_GUARDED_BY(mutex_);
  absl::Notification stop_;
  std::thread heartbeats_;
  testing::FakeWorker worker_;  // its calls use the others
};

// What is open: opened by the constructor, ended by Close(), which returns failures by reason.
class Opened {
 public:
  virtual ~Opened() = default;
  virtual std::map<std::string, int> Close() = 0;
};

class IdleConnections : public Opened {
 public:
  IdleConnections(const std::string& address, int count) {
    for (int i = 0; i < count; ++i) {
      connections_.push_back(std::make_unique<testing::HttpClient>(address));
      failures_["no connection"] += !connections_.back()->connected();
    }
  }
  std::map<std::string, int> Close() override {
    connections_.clear();
    return failures_;
  }

 private:
  std::vector<std::unique_ptr<testing::HttpClient>> connections_;
  std::map<std::string, int> failures_;
};

class SilentStreams : public Opened {
 public:
  SilentStreams(std::vector<std::unique_ptr<BenchTarget>> targets, int count, HoldingWorker* worker)
      : targets_(std::move(targets)), count_(count), worker_(worker) {
    for (int i = 0; i < count; ++i) {
      targets_[static_cast<size_t>(i) % targets_.size()]->Send(
          {"x", {}, kHeldTokens}, i, NowSeconds(), [this](const Outcome& outcome) {
            absl::MutexLock lock(&mutex_);
            ++ended_;
            if (!outcome.status.ok()) ++failures_[ReasonOf(outcome.status)];
          });
    }
    worker->AwaitHeld(static_cast<size_t>(count));
  }
  std::map<std::string, int> Close() override {
    worker_->Release();
    absl::MutexLock lock(&mutex_);
    const auto all_ended = [this] {
      mutex_.AssertReaderHeld();
      return ended_ == count_;
    };
    mutex_.Await(absl::Condition(&all_ended));
    return failures_;
  }

 private:
  absl::Mutex mutex_;
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> failures_ ABSL_GUARDED_BY(mutex_);
  const std::vector<std::unique_ptr<BenchTarget>> targets_;
  const int count_;
  HoldingWorker* const worker_;
};

// Of the router at one moment, with the times of new requests, one after another.
struct Figures {
  size_t threads = 0;
  double mib = 0;
  double p50_ms = 0, p99_ms = 0;
};

Outcome SendAndWait(BenchTarget* target) {
  Outcome outcome;
  absl::Notification ended;
  target->Send({"x", {}, 1}, 0, NowSeconds(), [&](Outcome got) {
    outcome = std::move(got);
    ended.Notify();
  });
  ended.WaitForNotification();
  return outcome;
}

Figures Measure(pid_t router, BenchTarget* target, int probes) {
  std::vector<double> ttft_ms;
  for (int i = 0; i < probes; ++i) {
    const Outcome outcome = SendAndWait(target);
    if (!outcome.status.ok()) Die(outcome.status);
    ttft_ms.push_back(outcome.ttft_s() * 1e3);
  }
  Figures figures;
  for ([[maybe_unused]] const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", router, "/task"))) {
    ++figures.threads;
  }
  figures.mib = static_cast<double>(ResidentBytesOf(router)) / (1 << 20);
  figures.p50_ms = Percentile(ttft_ms, 0.5);
  figures.p99_ms = Percentile(ttft_ms, 0.99);
  return figures;
}

std::unique_ptr<BenchTarget> Connect(const LocalCluster& cluster, const std::string& backend) {
  cli::TargetOptions options;
  options.backend = backend;
  options.address = cluster.address("router");
  options.base_url = absl::StrCat("http://", cluster.http_address("router"));
  options.ignore_eos = true;
  std::unique_ptr<BenchTarget> target = cli::MakeTarget(options);
  if (const auto model = target->Connect(); !model.ok()) Die(model.status());
  return target;
}

void AwaitReady(LocalCluster* cluster, BenchTarget* target) {
  const double end_s = NowSeconds() + 60;
  for (Outcome outcome = SendAndWait(target); !outcome.status.ok(); outcome = SendAndWait(target)) {
    if (NowSeconds() > end_s) Die(outcome.status);
    cluster->Listen(absl::Milliseconds(50));
  }
}

// Opens them, measures, closes them, and prints a row.
void MeasureRound(const Options& options, const std::string& kind, const std::string& backend,
                  const LocalCluster& cluster, BenchTarget* target, HoldingWorker* worker) {
  const auto measure = [&] { return Measure(cluster.pid("router"), target, options.probes); };
  const Figures before = measure();
  std::unique_ptr<Opened> opened;
  if (kind == "HTTP connections") {
    opened = std::make_unique<IdleConnections>(cluster.http_address("router"), options.count);
  } else {
    // A target of HTTP opens a connection for each stream.
    const int targets = backend == "baton" ? options.connections : 1;
    std::vector<std::unique_ptr<BenchTarget>> with;
    for (int i = 0; i < targets; ++i) with.push_back(Connect(cluster, backend));
    opened = std::make_unique<SilentStreams>(std::move(with), options.count, worker);
  }
  const Figures beside = measure();
  std::string errors;
  for (const auto& [reason, count] : opened->Close()) {
    if (count > 0) absl::StrAppend(&errors, errors.empty() ? "" : ", ", count, " ", reason);
  }
  opened.reset();
  const Figures after = measure();
  std::printf(
      "| %d %s | %s | %zu, %zu, %zu | %.1f, %.1f, %.1f | %.1f | %.2f, %.2f, %.2f | %.2f, %.2f, "
      "%.2f |\n",
      options.count, kind.c_str(), errors.empty() ? "none" : errors.c_str(), before.threads,
      beside.threads, after.threads, before.mib, beside.mib, after.mib,
      (beside.mib - before.mib) * 1024 / options.count, before.p50_ms, beside.p50_ms, after.p50_ms,
      before.p99_ms, beside.p99_ms, after.p99_ms);
  std::fflush(stdout);
  if (!errors.empty()) Die(absl::InternalError(errors));
}

void MeasureKind(const Options& options, const std::string& kind) {
  const auto tokenizer = tokenizer::Tokenizer::Load(options.cluster.model_dir);
  if (!tokenizer.ok()) Die(tokenizer.status());
  HoldingWorker worker((*tokenizer)->fingerprint());
  ClusterOptions cluster_options = options.cluster;
  cluster_options.prefill_workers = cluster_options.decode_workers = 0;
  cluster_options.more_decode_addresses = {worker.address()};
  cluster_options.http_listen = "127.0.0.1:0";
  AppendFlags(absl::StrCat("--max-inflight-requests ", 2 * options.count),
              &cluster_options.router_flags);
  const std::unique_ptr<LocalCluster> cluster = StartCluster(cluster_options);
  const std::string backend = kind == "gRPC streams" ? "baton" : "openai";
  const std::unique_ptr<BenchTarget> target = Connect(*cluster, backend);
  AwaitReady(cluster.get(), target.get());
  Measure(cluster->pid("router"), target.get(), options.probes);  // connections, code, allocators
  for (int round = 0; round < options.rounds; ++round) {
    MeasureRound(options, kind, backend, *cluster, target.get(), &worker);
  }
  if (absl::Status status = cluster->CheckAlive(); !status.ok()) Die(status);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Threads, memory and latency of a router beside open connections and silent streams");
  app.option_defaults()->always_capture_default();
  Options options;
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  app.add_option("--count", options.count, "Connections or streams that are open at once")
      ->check(CLI::Range(1, 16'000));
  app.add_option("--probes", options.probes, "New requests, one after another, of each figure")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--grpc-connections", options.connections, "Over which the gRPC streams go")
      ->check(CLI::Range(1, 16'000));
  app.add_option("--rounds", options.rounds, "Of opening them and closing them, on one router")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  std::printf(
      "Before, beside and after them; a new request generates one token.\n\n"
      "| open | errors | threads | memory, MiB | KiB for each | new request, p50 ms | p99 ms |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const char* kind : {"HTTP connections", "HTTP streams", "gRPC streams"}) {
    MeasureKind(options, kind);
  }
  return 0;
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
