#include "cli/bench.h"

#include <atomic>
#include <fstream>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/generate.h"
#include "cli/signal_watch.h"
#include "client/cpp/client.h"
#include "common/base/error.h"
#include "common/base/splitmix64.h"

namespace baton::cli {
namespace {

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(absl::Now() - start); }

RequestSample Measure(client::Client& client, const client::GenerateRequest& request,
                      absl::Time bench_start) {
  RequestSample sample;
  sample.start_s = SecondsSince(bench_start);
  const absl::Time start = absl::Now();
  const auto stream = client.Generate(request);
  int tokens_before = 0;
  double last_s = 0;
  while (auto delta = stream->Next()) {
    const double now_s = SecondsSince(start);
    const int fresh = delta->usage.generated_tokens - tokens_before;
    if (fresh == 0) continue;
    if (tokens_before == 0) sample.ttft_s = now_s;
    // Tokens that came in one message share the time since the last one.
    const int gaps = tokens_before == 0 ? 0 : fresh;
    for (int i = 0; i < gaps; ++i) sample.inter_token_s.push_back((now_s - last_s) / fresh);
    tokens_before = delta->usage.generated_tokens;
    last_s = now_s;
  }
  sample.e2e_s = last_s;
  sample.end_s = SecondsSince(bench_start);
  const client::Usage& usage = stream->completion().usage;
  sample.prompt_tokens = usage.prompt_tokens;
  sample.cached_prompt_tokens = usage.cached_prompt_tokens;
  sample.generated_tokens = usage.generated_tokens;
  sample.kv_bytes = usage.kv_bytes;
  sample.ok = stream->status().ok();
  if (!sample.ok) {
    const std::string reason = ErrorReason(stream->status());
    sample.failure = reason.empty() ? absl::StatusCodeToString(stream->status().code()) : reason;
    sample.message = std::string(stream->status().message());
  }
  return sample;
}

}  // namespace

std::vector<std::vector<int32_t>> BenchPrompts(const BenchOptions& options, int vocab_size) {
  uint64_t state = options.seed;
  const auto token = [&] { return static_cast<int32_t>(NextSplitMix64(&state) % vocab_size); };
  std::vector<int32_t> prefix(options.shared_prefix_tokens);
  for (int32_t& id : prefix) id = token();
  std::vector<std::vector<int32_t>> prompts(options.num_prompts, prefix);
  for (auto& prompt : prompts) {
    while (static_cast<int>(prompt.size()) < options.prompt_tokens) prompt.push_back(token());
  }
  return prompts;
}

int RunBench(const BenchOptions& options, std::ostream& out, std::ostream& err) {
  auto client = client::Client::Create(options.address, {absl::Milliseconds(options.timeout_ms)});
  const auto models = client.ok() ? (*client)->ListModels() : client.status();
  if (!models.ok() || models->empty()) {
    err << "baton bench: " << Describe(models.status()) << std::endl;
    return 1;
  }
  const auto prompts = BenchPrompts(options, models->front().vocab_size);
  BenchResult result;
  result.model = models->front().id;
  result.concurrency = options.concurrency;
  result.samples.resize(prompts.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> stopped{false};
  const absl::Time start = absl::Now();
  {
    SignalWatch ctrl_c([&stopped] { stopped = true; });
    std::vector<std::thread> clients;
    for (int i = 0; i < options.concurrency; ++i) {
      clients.emplace_back([&] {
        // In this order: a number that is taken is a request that is sent.
        for (size_t at; !stopped && (at = next++) < prompts.size();) {
          client::GenerateRequest request;
          request.token_ids = prompts[at];
          request.max_tokens = options.max_tokens;
          request.ignore_eos = options.ignore_eos;
          request.sampling.seed = options.seed + at;
          result.samples[at] = Measure(**client, request, start);
        }
      });
    }
    for (std::thread& thread : clients) thread.join();
  }
  result.duration_s = SecondsSince(start);
  // Those that Ctrl-C left out.
  result.samples.resize(std::min(next.load(), prompts.size()));
  out << FormatReport(result);
  if (!options.save_result.empty()) {
    std::ofstream file(options.save_result);
    file << ReportJson(result) << "\n";
    if (!file.good()) {
      err << "baton bench: cannot write " << options.save_result << std::endl;
      return 1;
    }
  }
  const bool any_ok = std::any_of(result.samples.begin(), result.samples.end(),
                                  [](const RequestSample& sample) { return sample.ok; });
  return any_ok ? 0 : 1;
}

}  // namespace baton::cli
