#include "cli/bench.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/generate.h"
#include "cli/load_generator.h"
#include "client/cpp/convert.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/channel.h"
#include "common/base/shutdown_signal.h"
#include "common/base/splitmix64.h"

namespace baton::cli {
namespace {

LoadRequest MakeRequest(const BenchOptions& options, const std::vector<int32_t>& prompt,
                        size_t number) {
  client::GenerateRequest request;
  request.token_ids = prompt;
  request.max_tokens = options.max_tokens;
  request.ignore_eos = options.ignore_eos;
  request.sampling.seed = options.seed + number;
  LoadRequest load;
  load.request = client::ToProto(request);
  load.timeout = absl::Milliseconds(options.timeout_ms);
  return load;
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
  LoadGenerator generator(
      MakeChannel(options.address, kClientChannel, SecurityFor(options.access)));
  const auto model = generator.GetModel();
  if (!model.ok()) {
    const std::string where = absl::StrCat("router at ", options.address);
    err << "baton bench: " << Describe(Annotate(model.status(), where)) << std::endl;
    return ExitCode(model.status());
  }
  const auto prompts = BenchPrompts(options, model->vocab_size());
  BenchResult result;
  result.model = model->id();
  result.concurrency = options.concurrency;
  result.outcomes.resize(prompts.size());
  std::vector<size_t> sent(options.concurrency);  // by caller: its last request
  std::atomic<size_t> next{0};
  std::atomic<bool> stopped{false};
  const double start_s = NowSeconds();
  {
    ShutdownWatch ctrl_c([&stopped] { stopped = true; });
    generator.RunClosedLoop(
        options.concurrency,
        [&](int caller) -> std::optional<LoadRequest> {
          // In this order: a number that is taken is a request that is sent.
          if (stopped || (sent[caller] = next++) >= prompts.size()) return std::nullopt;
          return MakeRequest(options, prompts[sent[caller]], sent[caller]);
        },
        [&](int caller, Outcome outcome) { result.outcomes[sent[caller]] = std::move(outcome); });
  }
  result.duration_s = NowSeconds() - start_s;
  // Those that Ctrl-C left out.
  result.outcomes.resize(std::min(next.load(), prompts.size()));
  out << (options.json ? ReportJson(result) + "\n" : FormatReport(result)) << std::flush;
  if (!options.save_result.empty()) {
    std::ofstream file(options.save_result);
    file << ReportJson(result) << "\n";
    if (!file.good()) {
      err << "baton bench: cannot write " << options.save_result << std::endl;
      return kExitFailure;
    }
  }
  const bool any_ok = std::any_of(result.outcomes.begin(), result.outcomes.end(),
                                  [](const Outcome& outcome) { return outcome.status.ok(); });
  return any_ok ? kExitOk : kExitFailure;
}

}  // namespace baton::cli
