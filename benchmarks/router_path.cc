// What the router adds to a request, and how well two of them find what is cached.
//
//   router_path --model models/demo [--text FILE] [--tokenizer DIR] [--rounds 1000]
//
// 1. The tokenizer alone, one thread: megabytes of text a second.
// 2. The same request to the router and to the decode worker behind it, in turn, one at a time: the
//    time to the first token and to the last. The prompt is cached, so little else is in the way.
//    Added is the difference of the quantiles. The goal: at most 0.3 ms at p99.
// 3. Requests with shared prefixes through two routers, in turn, over several prefill workers:
//    the cached share of their prompt tokens beside that of one cache without end, and beside what
//    the simulation of router_sim makes of the same requests at the same times, with the cost of
//    prefill that a worker told.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/internal/v1/decode.grpc.pb.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/traffic.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/tokenizer/tokenizer.h"
#include "simulator/baton_router.h"
#include "simulator/simulation.h"

namespace baton::benchmarks {
namespace {

namespace internal_pb = ::baton::internal::v1;

using ::baton::simulator::CellResult;
using ::baton::simulator::kSimBlockTokens;
using ::baton::simulator::MakeBatonRouter;
using ::baton::simulator::Scenario;
using ::baton::simulator::SimPolicy;
using ::baton::simulator::SimRequest;
using ::baton::simulator::Simulate;
using ::baton::simulator::Trace;

constexpr int kBlockTokens = 16;

struct Options {
  ClusterOptions cluster;
  std::string text, tokenizer;
  int rounds = 1000, warm_up = 100;
  int prompt_tokens = 256, answer_tokens = 32;
  int requests = 800, callers = 4, prefixes = 32, prefix_tokens = 384, own_tokens = 48;
  int cache_blocks = 1024;  // of a prefill worker
  uint64_t seed = 1;
};

struct Times {
  std::vector<double> first_ms, whole_ms;
};

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
}

template <class Response>
void Read(grpc::ClientReader<Response>& reader, double begin_s, int answer_tokens, Times* times) {
  Response response;
  double first_s = 0;
  int tokens = 0;
  while (reader.Read(&response)) {
    tokens += response.token_ids_size();
    if (first_s == 0 && tokens > 0) first_s = NowSeconds();
  }
  const double end_s = NowSeconds();
  const absl::Status status = FromGrpcStatus(reader.Finish());
  if (!status.ok()) Die(status);
  if (tokens != answer_tokens) Die(absl::UnavailableError("an answer has another length"));
  times->first_ms.push_back((first_s - begin_s) * 1e3);
  times->whole_ms.push_back((end_s - begin_s) * 1e3);
}

void AskRouter(v1::InferenceService::Stub& router, const v1::GenerateRequest& request,
               Times* times) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const double begin_s = NowSeconds();
  const auto reader = router.Generate(&context, request);
  Read(*reader, begin_s, request.stop().max_tokens(), times);
}

void AskWorker(internal_pb::DecodeService::Stub& worker, const internal_pb::DecodeRequest& request,
               Times* times) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const double begin_s = NowSeconds();
  const auto reader = worker.Decode(&context, request);
  Read(*reader, begin_s, request.max_tokens(), times);
}

// What one hop takes here, whoever serves it.
void AskLittle(v1::InferenceService::Stub& router, std::vector<double>* ms) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ListModelsResponse response;
  const double begin_s = NowSeconds();
  const grpc::Status status = router.ListModels(&context, v1::ListModelsRequest(), &response);
  if (!status.ok()) Die(FromGrpcStatus(status));
  ms->push_back((NowSeconds() - begin_s) * 1e3);
}

// Once the worker has told it.
internal_pb::PrefillCost CostOf(const LocalCluster& cluster, const std::string& address) {
  const auto stub = internal_pb::WorkerService::NewStub(
      MakeChannel(address, kPeerChannel, cluster.worker_security()));
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = stub->Watch(&context, internal_pb::WatchRequest());
  internal_pb::WatchResponse response;
  while (!response.load().has_prefill_cost()) {
    if (!reader->Read(&response)) Die(FromGrpcStatus(reader->Finish()));
  }
  context.TryCancel();
  return response.load().prefill_cost();
}

internal_pb::WorkerCard CardOf(const LocalCluster& cluster, const std::string& address) {
  const auto stub = internal_pb::WorkerService::NewStub(
      MakeChannel(address, kPeerChannel, cluster.worker_security()));
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = stub->Watch(&context, internal_pb::WatchRequest());
  internal_pb::WatchResponse response;
  if (!reader->Read(&response) || !response.has_card()) Die(FromGrpcStatus(reader->Finish()));
  context.TryCancel();
  return response.card();
}

// Addresses by role, as the router tells them.
std::vector<std::string> WorkersOf(const std::string& router, v1::WorkerRole role) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ListWorkersResponse response;
  const grpc::Status status = v1::AdminService::NewStub(MakeChannel(router, kClientChannel))
                                  ->ListWorkers(&context, v1::ListWorkersRequest(), &response);
  if (!status.ok()) Die(FromGrpcStatus(status));
  std::vector<std::string> addresses;
  for (const v1::WorkerStatus& worker : response.workers()) {
    if (worker.role() == role) addresses.push_back(worker.address());
  }
  return addresses;
}

void PrintRow(const char* what, const std::vector<double>& values, const char* note = "") {
  std::printf("| %s | %.3f | %.3f | %.3f |%s\n", what, Percentile(values, 0.5),
              Percentile(values, 0.9), Percentile(values, 0.99), note);
}

void PrintAdded(const char* what, const std::vector<double>& more,
                const std::vector<double>& less) {
  const auto added = [&](double q) { return Percentile(more, q) - Percentile(less, q); };
  std::printf("| **%s** | **%.3f** | **%.3f** | **%.3f** |\n", what, added(0.5), added(0.9),
              added(0.99));
}

void BenchLatency(const Options& options) {
  ClusterOptions wanted = options.cluster;
  wanted.prefill_workers = 1;
  wanted.decode_workers = 1;
  const std::unique_ptr<LocalCluster> cluster = StartCluster(wanted);
  const std::string address = cluster->address("router");
  const std::string prefill_address = WorkersOf(address, v1::WORKER_ROLE_PREFILL)[0];
  const std::string decode_address = WorkersOf(address, v1::WORKER_ROLE_DECODE)[0];
  const internal_pb::WorkerCard prefill = CardOf(*cluster, prefill_address),
                                decode = CardOf(*cluster, decode_address);
  LoadGenerator generator({address});
  Random random(options.seed);
  const std::vector<int32_t> prompt = random.Tokens(options.prompt_tokens, VocabSizeOf(&generator));

  const v1::GenerateRequest to_router = MakeRequest(prompt, options.answer_tokens).request;
  internal_pb::DecodeRequest to_worker;
  to_worker.set_request_id("direct");
  to_worker.set_model_fingerprint(decode.model_fingerprint());
  to_worker.set_decode_epoch(decode.epoch());
  to_worker.mutable_prefill()->set_address(prefill_address);
  to_worker.mutable_prefill()->set_worker_id(prefill.worker_id());
  to_worker.mutable_prefill()->set_epoch(prefill.epoch());
  to_worker.mutable_tokens()->Add(prompt.begin(), prompt.end());
  to_worker.mutable_sampling()->set_temperature(0);
  to_worker.mutable_sampling()->set_top_p(1);
  to_worker.set_max_tokens(options.answer_tokens);

  const auto router = v1::InferenceService::NewStub(MakeChannel(address, kClientChannel));
  const auto worker = internal_pb::DecodeService::NewStub(
      MakeChannel(decode_address, kPeerChannel, cluster->worker_security()));
  Times through, direct, discarded;
  std::vector<double> little_ms;
  for (int i = 0; i < options.warm_up + options.rounds; ++i) {
    const bool counts = i >= options.warm_up;
    // Whoever is first may find the machine in another state.
    if (i % 2 == 0) AskRouter(*router, to_router, counts ? &through : &discarded);
    AskWorker(*worker, to_worker, counts ? &direct : &discarded);
    if (i % 2 != 0) AskRouter(*router, to_router, counts ? &through : &discarded);
    AskLittle(*router, counts ? &little_ms : &discarded.first_ms);
  }
  std::printf("\nOne request at a time, %d prompt tokens cached, %d answered; ms, %d rounds\n\n",
              options.prompt_tokens, options.answer_tokens, options.rounds);
  std::printf("| | p50 | p90 | p99 |\n|---|---|---|---|\n");
  PrintRow("an unary call that asks the router for next to nothing", little_ms);
  PrintRow("first token, decode worker", direct.first_ms);
  PrintRow("first token, router", through.first_ms);
  PrintAdded("first token, added", through.first_ms, direct.first_ms);
  PrintRow("whole answer, decode worker", direct.whole_ms);
  PrintRow("whole answer, router", through.whole_ms);
  PrintAdded("whole answer, added", through.whole_ms, direct.whole_ms);
}

// What one request is made of, to the simulation: a block of 16 tokens is one of its own, longer
// ones, so that tokens, and the cost of each, are scaled.
Trace TraceOf(const Options& options, const std::vector<Outcome>& outcomes,
              const std::vector<int>& prefix_of) {
  const int shared = options.prefix_tokens / kBlockTokens, own = options.own_tokens / kBlockTokens;
  Trace trace;
  trace.name = "router_path";
  trace.block_count = options.prefixes * shared;
  std::vector<size_t> order(outcomes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return outcomes[a].sent_s < outcomes[b].sent_s; });
  const double begin_s = outcomes[order.front()].sent_s;
  for (const size_t i : order) {
    SimRequest& request = trace.requests.emplace_back();
    request.at_us = static_cast<int64_t>((outcomes[i].sent_s - begin_s) * 1e6);
    request.prompt_tokens = (shared + own) * kSimBlockTokens;
    for (int b = 0; b < shared; ++b) request.blocks.push_back(prefix_of[i] * shared + b);
    for (int b = 0; b < own; ++b) request.blocks.push_back(trace.block_count++);
  }
  return trace;
}

void BenchHitRate(const Options& options) {
  ClusterOptions wanted = options.cluster;
  wanted.prefill_workers = 4;
  wanted.decode_workers = 1;
  wanted.routers = 2;
  // So that a hit is one of a prefill worker that a router chose.
  AppendFlags("--no-enable-prefix-caching --local-prefill-max-tokens 0", &wanted.decode_flags);
  AppendFlags("--max-local-prefill-tokens 0", &wanted.router_flags);
  AppendFlags(absl::StrCat("--num-blocks ", options.cache_blocks), &wanted.prefill_flags);
  const std::unique_ptr<LocalCluster> cluster = StartCluster(wanted);
  LoadGenerator generator({cluster->address("router"), cluster->address("router-1")});
  const int vocab_size = VocabSizeOf(&generator);
  Random random(options.seed);
  std::vector<std::vector<int32_t>> prefixes;
  for (int i = 0; i < options.prefixes; ++i) {
    prefixes.push_back(random.Tokens(options.prefix_tokens, vocab_size));
  }
  std::vector<LoadRequest> requests;
  std::vector<int> prefix_of;
  int64_t ceiling = 0;
  std::set<int> seen;
  for (int i = 0; i < options.requests; ++i) {
    const int prefix = random.Between(0, options.prefixes - 1);
    prefix_of.push_back(prefix);
    std::vector<int32_t> prompt = prefixes[prefix];
    const std::vector<int32_t> own = random.Tokens(options.own_tokens, vocab_size);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(MakeRequest(prompt, 8));
    requests.back().timeout = absl::Seconds(60);
    if (!seen.insert(prefix).second) ceiling += options.prefix_tokens / kBlockTokens * kBlockTokens;
  }
  std::vector<Outcome> outcomes(requests.size());
  std::vector<size_t> sent(options.callers);  // by caller: its last request
  std::atomic<size_t> next{0};
  const double begin_s = NowSeconds();
  generator.RunClosedLoop(
      options.callers,
      [&](int caller) -> std::optional<LoadRequest> {
        sent[caller] = next++;
        if (sent[caller] >= requests.size()) return std::nullopt;
        return requests[sent[caller]];
      },
      [&](int caller, Outcome outcome) { outcomes[sent[caller]] = std::move(outcome); });
  const double took_s = NowSeconds() - begin_s;
  int64_t cached = 0, prompt = 0;
  std::vector<double> first_ms;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.status.ok()) Die(outcome.status);
    cached += outcome.usage.cached_prompt_tokens();
    prompt += outcome.usage.prompt_tokens();
    first_ms.push_back((outcome.token_s.front() - outcome.sent_s) * 1e3);
  }
  std::printf(
      "\n2 routers, 4 prefill workers, 1 decode worker; %d requests of %d + %d tokens, %d "
      "prefixes, "
      "%d callers: %.1f s\n\n",
      options.requests, options.prefix_tokens, options.own_tokens, options.prefixes,
      options.callers, took_s);
  const internal_pb::PrefillCost cost =
      CostOf(*cluster, WorkersOf(cluster->address("router"), v1::WORKER_ROLE_PREFILL)[0]);
  constexpr double kScale = 1.0 * kSimBlockTokens / kBlockTokens;
  Scenario scenario;
  scenario.routers = 2;
  scenario.workers = 4;
  scenario.cache_blocks = options.cache_blocks;
  scenario.cost = {cost.fixed_us(), cost.token_us() / kScale, cost.pair_us() / (kScale * kScale)};
  scenario.seed = options.seed;
  const CellResult simulated =
      Simulate(TraceOf(options, outcomes, prefix_of), scenario,
               MakeBatonRouter([](uint64_t) { return SimPolicy(/*seed=*/0); }));
  std::printf("| hit rate | simulated | of a cache without end | TTFT p50 | p99 |\n");
  std::printf("|---|---|---|---|---|\n| **%.3f** | %.3f | %.3f | %.2f ms | %.2f ms |\n",
              1.0 * cached / prompt, simulated.hit_rate, 1.0 * ceiling / prompt,
              Percentile(first_ms, 0.5), Percentile(first_ms, 0.99));
}

void BenchTokenizer(const Options& options) {
  const std::string dir = options.tokenizer.empty() ? options.cluster.model_dir : options.tokenizer;
  auto tokenizer = tokenizer::Tokenizer::Load(dir);
  if (!tokenizer.ok()) Die(tokenizer.status());
  std::string text = "The quick brown fox jumps over the lazy dog, 12 times. ";
  if (!options.text.empty()) {
    std::ifstream file(options.text, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  // As long as prompts are.
  constexpr size_t kPromptBytes = 16 << 10;
  while (text.size() < kPromptBytes) text += text;
  text.resize(std::min<size_t>(text.size(), 1 << 20));
  int64_t bytes = 0, tokens = 0;
  const double begin_s = NowSeconds();
  double took_s = 0;
  while (took_s < 2) {
    const auto ids = (*tokenizer)->Encode(text, true);
    if (!ids.ok()) Die(ids.status());
    bytes += static_cast<int64_t>(text.size());
    tokens += static_cast<int64_t>(ids->size());
    took_s = NowSeconds() - begin_s;
  }
  std::printf(
      "tokenizer of %s (%d tokens), prompts of %zu bytes, one thread: **%.1f MB/s**, "
      "%.2f M tokens/s\n",
      dir.c_str(), (*tokenizer)->vocab_size(), text.size(), bytes / took_s / 1e6,
      tokens / took_s / 1e6);
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) {
  using namespace baton::benchmarks;  // NOLINT: this is main()
  Options options;
  options.cluster.model_dir = "models/demo";
  options.cluster.worker_flags = {"--threads", "1"};
  CLI::App app("What the router adds to a request, and how well two of them find what is cached");
  app.option_defaults()->always_capture_default();
  AddClusterFlags(&app, &options.cluster);
  app.add_option("--text", options.text, "For the tokenizer")->check(CLI::ExistingFile);
  app.add_option("--tokenizer", options.tokenizer, "Directory with another tokenizer.json");
  const CLI::Range count(1, 1'000'000);
  app.add_option("--rounds", options.rounds, "Of each way to the decode worker")->check(count);
  app.add_option("--prompt-tokens", options.prompt_tokens, "Of those requests")->check(count);
  app.add_option("--answer-tokens", options.answer_tokens, "Of those requests")->check(count);
  app.add_option("--requests", options.requests, "With shared prefixes")->check(count);
  app.add_option("--callers", options.callers, "Of those, at a time")->check(CLI::Range(1, 256));
  app.add_option("--prefixes", options.prefixes, "How many there are")->check(count);
  app.add_option("--prefix-tokens", options.prefix_tokens, "Of each")->check(count);
  app.add_option("--own-tokens", options.own_tokens, "Behind it")->check(count);
  app.add_option("--cache-blocks", options.cache_blocks, "Of each prefill worker then")
      ->check(CLI::Range(64, 1 << 20));
  app.add_option("--seed", options.seed, "Of all prompts");
  CLI11_PARSE(app, argc, argv);
  BenchTokenizer(options);
  BenchLatency(options);
  BenchHitRate(options);
  return 0;
}
