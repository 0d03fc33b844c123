#include "cli/bench/bench.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "cli/bench/arrivals.h"
#include "cli/bench/plot.h"
#include "cli/bench/words.h"
#include "cli/generate.h"
#include "cli/progress.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/channel.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

bool HasText(const DatasetOptions& dataset) {
  return dataset.name == "sharegpt" || dataset.name == "custom";
}

std::vector<double> TimesOf(const BenchOptions& options, const std::vector<BenchPrompt>& prompts) {
  if (options.dataset.name != "trace" || !options.self_timed) {
    return ArrivalTimes(static_cast<int>(prompts.size()), options.request_rate, options.burstiness,
                        options.dataset.seed);
  }
  std::vector<double> times;
  for (const BenchPrompt& prompt : prompts) times.push_back(prompt.at_s);
  return times;
}

// As vLLM names its results.
std::string FileName(const BenchOptions& options, const BenchResult& result) {
  const std::vector<std::string> parts = absl::StrSplit(result.model, '/');
  return absl::StrCat(
      result.label.empty() ? result.backend : result.label, "-", options.request_rate, "qps",
      options.max_concurrency ? absl::StrCat("-concurrency", *options.max_concurrency) : "", "-",
      parts.back(), "-", result.date, ".json");
}

absl::StatusOr<BenchResult> Measure(const BenchOptions& options, std::ostream& err) {
  const std::unique_ptr<BenchTarget> target = MakeTarget(options.target);
  BATON_ASSIGN_OR_RETURN(const TargetModel model, target->Connect());
  // A chat takes texts only.
  const bool spelled = options.target.backend == "openai-chat" && !HasText(options.dataset);
  const int vocab_size = spelled                  ? static_cast<int>(CommonWords().size())
                         : options.vocab_size > 0 ? options.vocab_size
                                                  : model.vocab_size;
  if (vocab_size == 0 && !HasText(options.dataset)) {
    return absl::InvalidArgumentError(
        "the server does not report the size of its vocabulary: expected --vocab-size for random "
        "token ids");
  }
  BATON_ASSIGN_OR_RETURN(std::vector<BenchPrompt> prompts,
                         MakePrompts(options.dataset, vocab_size, target->Counter()));
  if (spelled) SpellPrompts(&prompts);
  BenchResult result;
  result.date = BenchDate();
  result.backend = options.target.backend;
  result.label = options.output.label;
  result.model = model.id;
  result.metadata = options.output.metadata;
  result.num_prompts = static_cast<int>(prompts.size());
  result.request_rate = options.request_rate;
  result.burstiness = options.burstiness;
  result.max_concurrency = options.max_concurrency;
  absl::Notification stop;
  ShutdownWatch ctrl_c([&stop] {
    if (!stop.HasBeenNotified()) stop.Notify();
  });
  OpenLoopOptions loop;
  loop.stop = &stop;
  if (options.max_concurrency) loop.max_concurrency = *options.max_concurrency;
  if (options.num_warmups > 0) {
    const std::vector<BenchPrompt> warmups(options.num_warmups, prompts.front());
    SendPrompts(target.get(), warmups, std::vector<double>(warmups.size()), loop);
  }
  Progress progress(err, options.output.progress, "requests", result.num_prompts);
  int failed = 0;
  loop.on_end = [&](const Outcome& outcome) {
    failed += !outcome.status.ok();
    progress.Advance(1, failed == 0 ? "" : absl::StrCat(failed, " failed"));
  };
  result.start_s = NowSeconds();
  result.outcomes = SendPrompts(target.get(), prompts, TimesOf(options, prompts), loop);
  result.duration_s = NowSeconds() - result.start_s;
  return result;
}

}  // namespace

int RunBench(const BenchOptions& options, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<BenchResult> result = Measure(options, err);
  if (!result.ok()) {
    err << "baton bench: " << Describe(result.status()) << std::endl;
    return ExitCode(result.status());
  }
  const absl::Status written =
      Write(options.output,
            {FormatReport(*result, options.report), ReportJson(*result, options.report),
             BenchPlot(*result), FileName(options, *result)},
            out);
  if (!written.ok()) {
    err << "baton bench: " << written.message() << std::endl;
    return kExitFailure;
  }
  const bool any_ok = std::any_of(result->outcomes.begin(), result->outcomes.end(),
                                  [](const Outcome& outcome) { return outcome.status.ok(); });
  return any_ok ? kExitOk : kExitFailure;
}

}  // namespace baton::cli
