// How long does a sequence wait for its KV after its prompt is computed, and what does a long
// transfer do to a short one beside it? benchmarks/kv_exposed.py runs both ends in two network
// namespaces with a throttled link between them.
//
//   kv_exposed_bench --listen HOST:PORT
//   kv_exposed_bench --address HOST:PORT --gbit 1 [--tokens 512,4096] [--tokens-per-s 1600,20000]
//
// The transfer is real (GrpcKvSender to PrefillCall). Prefill is a timer: steps of up to 2,048
// tokens whose layers take equal times, each sent when its time is over, as the prefill worker's
// loop does; or, for comparison, all layers after the last one. The state of recurrent layers is
// sent once, each piece of it when the last step has computed the layers that it belongs to.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "benchmarks/kv_shapes.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/malloc_settings.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/server.h"
#include "common/transfer/kv_sender.h"
#include "common/transfer/link_meter.h"
#include "common/transfer/prefill_call.h"

namespace baton::benchmarks {
namespace {

constexpr int kStepTokens = 2048;
constexpr int kMostTokens = 32768;
constexpr int kSmallTokens = 208;  // 13 blocks

// What a call asks for. It travels as the tokens of a PrefillRequest.
struct Job {
  int tokens = 0;
  int tokens_per_s = 0;  // 0: all is cached
  bool after = false;    // send when all is computed
  bool ordered = true;   // by a LinkSchedule
};

kv::KvLayout the_layout = LayoutOf(kKvShapes[1]);  // of both processes
const kv::KvLayout& Layout() { return the_layout; }
int ModelLayers() {
  return Layout().attention_layers() * (Layout().recurrent() ? kLayersPerAttention : 1);
}
int Blocks(int tokens) { return tokens / Layout().block_tokens; }
// Those of the state behind `tokens` tokens.
int64_t StateBytes() { return Layout().state_pieces() * Layout().ChunkBytes(); }
int64_t KvBytes(int tokens) {
  return Layout().attention_layers() * Layout().ChunkBytes() * Blocks(tokens);
}
int PageCount(int tokens) {
  const kv::KvPages pages = Layout().Pages();
  return Blocks(tokens) * pages.full_tables + pages.window_tables;
}
// [table][block]: a page for each block and, behind them, those of the state, which only the last
// block has.
std::vector<int32_t> PagesOf(int tokens) {
  const kv::KvPages pages = Layout().Pages();
  const auto blocks = static_cast<size_t>(Blocks(tokens));
  std::vector<int32_t> found(blocks * static_cast<size_t>(pages.tables()), -1);
  const size_t full = blocks * static_cast<size_t>(pages.full_tables);
  std::iota(found.begin(), found.begin() + static_cast<int64_t>(full), 0);
  for (int table = 0; table < pages.window_tables; ++table) {
    found[full + static_cast<size_t>(table + 1) * blocks - 1] = static_cast<int32_t>(full) + table;
  }
  return found;
}
// The same for both processes: they share the machine's clock.
double NowMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Sender final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                         internal::v1::PrefillService::Service> {
 public:
  // All pages are one: what they hold is not looked at.
  Sender() : memory_(MakePool(Layout().PageBytes())) {}
  ~Sender() override {
    absl::MutexLock lock(&mutex_);
    for (std::thread& thread : threads_) thread.join();
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes) override {
    internal::v1::PrefillRequest request;
    grpc::ByteBuffer copy(*bytes);
    BATON_CHECK(
        grpc::SerializationTraits<internal::v1::PrefillRequest>::Deserialize(&copy, &request).ok());
    const Job job = {request.tokens(0), request.tokens(1), request.tokens(2) != 0,
                     request.tokens(3) != 0};
    transfer::GrpcKvSender::Options options;
    options.layout = Layout();
    options.pool = PoolAt(memory_.data(), options.layout, 1);
    options.pool.block_stride_bytes = 0;
    if (job.ordered) options.schedule = schedule_;
    options.link = context->peer();
    auto sender = std::make_shared<transfer::GrpcKvSender>(std::move(options));
    absl::MutexLock lock(&mutex_);
    threads_.emplace_back([job, sender] { Compute(job, *sender); });
    return transfer::GrpcKvSender::Open(sender);
  }

 private:
  static void Compute(const Job& job, transfer::GrpcKvSender& sender) {
    const int layers = ModelLayers();
    const auto pin = std::make_shared<const transfer::PinnedBlocks>(PagesOf(job.tokens), [] {});
    sender.SendAccepted(Blocks(job.tokens), 0);
    const double begin_ms = NowMs();
    const absl::Time begin = absl::Now();
    for (int first = 0; first < job.tokens; first += kStepTokens) {
      const int count = std::min(kStepTokens, job.tokens - first);
      for (int layer = 0; layer < layers; ++layer) {
        if (job.tokens_per_s > 0) {
          const double tokens = first + static_cast<double>(count) * (layer + 1) / layers;
          absl::SleepFor(begin + absl::Seconds(tokens / job.tokens_per_s) - absl::Now());
        }
        if (job.after) continue;
        SendLayer(layer, Blocks(first), Blocks(count), first + count == job.tokens, pin, sender);
      }
    }
    const double end_ms = NowMs();
    if (job.after) {
      for (int layer = 0; layer < layers; ++layer) {
        SendLayer(layer, 0, Blocks(job.tokens), true, pin, sender);
      }
    }
    sender.SendFirstToken(1, {});
    sender.SendCommit(end_ms, end_ms - begin_ms);
    sender.Finish(absl::OkStatus());
  }

  // What a layer of the model has written: KV or, in the last step, pieces of the state.
  static void SendLayer(int layer, int first_block, int blocks, bool last,
                        const std::shared_ptr<const transfer::PinnedBlocks>& pin,
                        transfer::GrpcKvSender& sender) {
    const int group = Layout().recurrent() ? kLayersPerAttention : 1;
    if (layer % group == group - 1) {
      sender.SendLayer(layer / group, first_block, blocks, pin, nullptr);
      return;
    }
    if (!last) return;
    static const std::vector<int>& behind = *new std::vector<int>(Layout().Pages().pieces_behind);
    const int recurrent = layer - layer / group;
    for (int piece = recurrent == 0 ? 0 : behind[static_cast<size_t>(recurrent) - 1];
         piece < behind[static_cast<size_t>(recurrent)]; ++piece) {
      sender.SendLayer(Layout().attention_layers() + piece, first_block + blocks - 1, 1, pin,
                       nullptr);
    }
  }

  std::vector<std::byte> memory_;
  const std::shared_ptr<transfer::LinkSchedule> schedule_ =
      std::make_shared<transfer::LinkSchedule>(Clock::Real());
  absl::Mutex mutex_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

class Receiver {
 public:
  // For prompts of so many tokens at most.
  Receiver(const std::string& address, int tokens)
      : channel_(MakeChannel(address, kTransferChannel)),
        pages_(PageCount(tokens)),
        memory_(MakePool(Layout().PageBytes() * pages_)) {}

  struct Transfer {
    double begin_ms = 0, end_ms = 0, prefill_end_ms = 0, prefill_ms = 0;
    absl::Notification first_token, closed;
    std::shared_ptr<transfer::PrefillCall> call;
    double exposed_ms() const { return end_ms - prefill_end_ms; }
  };
  std::unique_ptr<Transfer> Start(const Job& job) {
    auto transfer = std::make_unique<Transfer>();
    internal::v1::PrefillRequest request;
    for (const int value : {job.tokens, job.tokens_per_s, int{job.after}, int{job.ordered}}) {
      request.add_tokens(value);
    }
    transfer::TransferPlan plan;
    plan.layout = Layout();
    plan.pool = PoolAt(memory_.data(), plan.layout, pages_);
    plan.blocks = PagesOf(job.tokens);
    plan.token_count = 2;
    plan.link = meter_->Begin({"sender", 1});
    transfer::PrefillEvents events;
    events.on_first_token = [t = transfer.get()](const transfer::FirstToken&) {
      t->first_token.Notify();
    };
    events.on_end = [t = transfer.get()](const absl::Status& status,
                                         const transfer::TransferSummary& summary) {
      BATON_CHECK(status.ok()) << status;
      t->end_ms = NowMs();
      t->prefill_end_ms = summary.queue_ms;
      t->prefill_ms = summary.prefill_ms;
    };
    events.on_closed = [t = transfer.get()] { t->closed.Notify(); };
    transfer->begin_ms = NowMs();
    transfer->call = transfer::PrefillCall::Start(channel_, request, absl::Now() + absl::Minutes(2),
                                                  std::move(plan), std::move(events));
    return transfer;
  }
  std::unique_ptr<Transfer> Run(const Job& job) {
    auto transfer = Start(job);
    transfer->closed.WaitForNotification();
    return transfer;
  }

  void ForgetRate() { meter_ = std::make_shared<transfer::LinkMeter>(Clock::Real()); }
  // Since then, of the link, as a decode worker would report it; 0: nothing was measured.
  double MeasuredGbit() const {
    const auto measured = meter_->Measured();
    return measured == nullptr ? 0 : measured->front().bytes_per_second * 8e-9;
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<transfer::LinkMeter> meter_ =
      std::make_shared<transfer::LinkMeter>(Clock::Real());
  const int pages_;
  std::vector<std::byte> memory_;
};

struct Options {
  std::string listen, address;
  double gbit = 1;
  std::vector<int> tokens = {512, 1024, 2048, 4096};
  std::vector<int> tokens_per_s = {1600, 20000};
  int rounds = 3;
  bool fairness = true;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void ReportExposed(Receiver& receiver, const Options& options) {
  std::printf(
      "\n| link | prompt | prefill | transfer | bound | layer by layer | ÷ bound | after prefill "
      "| link as measured |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  for (const int rate : options.tokens_per_s) {
    for (const int tokens : options.tokens) {
      std::vector<double> exposed, prefill, after;
      receiver.ForgetRate();
      for (int i = 0; i < options.rounds; ++i) {
        const auto transfer = receiver.Run({tokens, rate, false});
        exposed.push_back(transfer->exposed_ms());
        prefill.push_back(transfer->prefill_ms);
      }
      const double measured = receiver.MeasuredGbit();
      for (int i = 0; i < options.rounds; ++i) {
        after.push_back(receiver.Run({tokens, rate, true})->exposed_ms());
      }
      const auto in_ms = [&](int64_t bytes) {
        return static_cast<double>(bytes) / (options.gbit * 1e9 / 8 / 1000);
      };
      const double transfer_ms = in_ms(KvBytes(tokens) + StateBytes());
      const int last_step = (tokens - 1) % kStepTokens + 1;
      const double layer_ms = in_ms(Layout().ChunkBytes() * Blocks(last_step));
      // What crosses during the last step: its own KV and the state.
      const double last_ms = in_ms(KvBytes(last_step) + StateBytes());
      const double last_step_ms = Median(prefill) * last_step / tokens;
      const double bound =
          layer_ms + std::max({0.0, transfer_ms - Median(prefill), last_ms - last_step_ms});
      std::printf(
          "| %g Gbit/s | %d | %.0f ms | %.1f ms | %.1f ms | %.1f ms | %.2f | %.1f ms | %s |\n",
          options.gbit, tokens, Median(prefill), transfer_ms, bound, Median(exposed),
          Median(exposed) / bound, Median(after),
          measured > 0 ? absl::StrFormat("%.3g Gbit/s", measured).c_str() : "not");
      std::fflush(stdout);
    }
  }
}

void ReportFairness(Receiver& receiver, const Options& options) {
  const Job large = {kMostTokens, 0}, small = {kSmallTokens, 0};
  std::vector<double> alone, in_turn, ordered, large_alone, large_ordered;
  const auto beside = [&](bool is_ordered, std::vector<double>* large_ms) {
    Job job = large;
    job.ordered = is_ordered;
    const auto running = receiver.Start(job);
    running->first_token.WaitForNotification();
    job = small;
    job.ordered = is_ordered;
    const auto transfer = receiver.Run(job);
    BATON_CHECK(!running->closed.HasBeenNotified()) << "the large transfer is too short";
    running->closed.WaitForNotification();
    if (large_ms != nullptr) large_ms->push_back(running->end_ms - running->begin_ms);
    return transfer->end_ms - transfer->begin_ms;
  };
  for (int i = 0; i < options.rounds; ++i) {
    const auto transfer = receiver.Run(small);
    alone.push_back(transfer->end_ms - transfer->begin_ms);
    const auto whole = receiver.Run(large);
    large_alone.push_back(whole->end_ms - whole->begin_ms);
    in_turn.push_back(beside(false, nullptr));
    ordered.push_back(beside(true, &large_ordered));
  }
  std::printf(
      "\n| link | %d tokens alone | beside %d, in turn | beside, by due time | "
      "%d alone | with the small one |\n|---|---|---|---|---|---|\n"
      "| %g Gbit/s | %.1f ms | %.1f ms | %.1f ms | %.0f ms | %.0f ms |\n",
      kSmallTokens, kMostTokens, kMostTokens, options.gbit, Median(alone), Median(in_turn),
      Median(ordered), Median(large_alone), Median(large_ordered));
}

void Main(const Options& options) {
  KeepFreedMemory();
  if (options.listen.empty()) {
    const int most = *std::max_element(options.tokens.begin(), options.tokens.end());
    Receiver receiver(options.address,
                      std::max(options.fairness ? kMostTokens : kStepTokens, most));
    receiver.Run({kStepTokens, 0});  // connects
    if (options.fairness) ReportFairness(receiver, options);
    ReportExposed(receiver, options);
    return;
  }
  Sender service;
  RpcServerOptions server_options;
  server_options.address = options.listen;
  auto server = RpcServer::Start(server_options, {&service}, {"baton.internal.v1.PrefillService"});
  BATON_CHECK(server.ok()) << server.status();
  std::printf("ready\n");
  std::fflush(stdout);
  std::getchar();  // until the script closes it
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) {
  baton::benchmarks::Options options;
  CLI::App app("Measures the wait for KV after prefill, over a link of known rate");
  app.add_option("--listen", options.listen, "HOST:PORT; sends");
  app.add_option("--address", options.address, "HOST:PORT; receives");
  app.add_option("--gbit", options.gbit, "The link's rate, for the bound");
  app.add_option("--tokens", options.tokens, "Prompts")->delimiter(',');
  app.add_option("--tokens-per-s", options.tokens_per_s, "Speed of prefill")->delimiter(',');
  app.add_option("--rounds", options.rounds);
  app.add_flag("--fairness,!--no-fairness", options.fairness, "A short prompt beside a long one");
  std::string layout = "0.5b";
  namespace benchmarks = baton::benchmarks;
  std::vector<std::string> layouts = {benchmarks::kRecurrentShape.name,
                                      benchmarks::kRecurrentShapeInFull.name};
  for (const benchmarks::KvShape& shape : benchmarks::kKvShapes) layouts.emplace_back(shape.name);
  app.add_option("--layout", layout, "Shape of the KV, of both processes")
      ->check(CLI::IsMember(layouts));
  CLI11_PARSE(app, argc, argv);
  for (const benchmarks::KvShape& shape : benchmarks::kKvShapes) {
    if (layout == shape.name) benchmarks::the_layout = LayoutOf(shape);
  }
  if (layout == layouts[0]) benchmarks::the_layout = benchmarks::RecurrentLayout();
  if (layout == layouts[1]) {
    benchmarks::the_layout = LayoutOf(benchmarks::kRecurrentShapeInFull);
  }
  benchmarks::Main(options);
  return 0;
}
