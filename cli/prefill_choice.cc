#include "cli/prefill_choice.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/bench/figures.h"
#include "cli/bench/target.h"
#include "common/base/named_thread.h"
#include "common/base/status_macros.h"
#include "common/base/usable_cores.h"

namespace baton::cli {
namespace {

// The mix: prompts and answers of these lengths, give or take a half, so many at once. Prompts that
// a decode worker beside a prefill worker would compute itself (of up to 32 tokens) are not in it.
constexpr int kMixPrompts = 32, kMixAtOnce = 4, kMixPromptTokens = 256, kMixAnswerTokens = 24;
constexpr int kWarmUpTokens = 64;
constexpr double kMixSpread = 0.5;
// A fast model answers all of them before; a slow one is measured by what it answers until then.
constexpr absl::Duration kMixSendFor = absl::Seconds(8);
constexpr absl::Duration kMixAnswerWithin = absl::Seconds(8);
constexpr int kFewestAnswers = 8;  // fewer say nothing
constexpr double kBetterThanNoise = 0.8;
constexpr double kUnknown = std::numeric_limits<double>::infinity();

double MedianOrUnknown(std::vector<double> values) {
  return values.empty() ? kUnknown : Percentile(std::move(values), 50);
}

// Milliseconds.
std::string ThreeDigits(double ms) {
  return ms >= 100 ? absl::StrFormat("%.0f", ms) : absl::StrFormat("%.3g", ms);
}

std::string TimesText(const AnswerTimes& times) {
  if (times.answers == 0) return "no answer in time";
  return absl::StrCat(ThreeDigits(times.answer_ms), " ms an answer (TTFT ",
                      ThreeDigits(times.ttft_ms), " ms, ", ThreeDigits(times.tpot_ms),
                      " ms per token, ", times.answers, " answers)");
}

ClusterOptions MeasuredCluster(ClusterOptions options, int prefill_workers) {
  options.prefill_workers = prefill_workers;
  options.listen = options.metrics_listen = "127.0.0.1:0";
  options.http_listen.clear();
  // No client needs its address, and its prompts must not get into KV tiers.
  options.router_flags.clear();
  options.prefill_flags.clear();
  options.decode_flags.clear();
  options.router_tls = false;
  options.otlp_traces_endpoint.clear();
  options.log_dir.clear();
  options.on_line = nullptr;
  return options;
}

absl::StatusOr<std::vector<BenchPrompt>> MixFor(BenchTarget* target) {
  BATON_ASSIGN_OR_RETURN(const TargetModel model, target->Connect());
  DatasetOptions mix;
  mix.num_prompts = kMixPrompts;
  // The longest prompt with the longest answer takes little more than half of the context.
  mix.random_input_len = std::clamp(model.max_model_len / 3, 1, kMixPromptTokens);
  mix.random_output_len = std::clamp(model.max_model_len / 32, 2, kMixAnswerTokens);
  mix.random_range_ratio = kMixSpread;
  return MakePrompts(mix, model.vocab_size, nullptr);
}

std::vector<Outcome> SendMix(BenchTarget* target, const std::vector<BenchPrompt>& prompts,
                             const absl::Notification& stop) {
  OpenLoopOptions loop;
  loop.stop = &stop;
  loop.max_concurrency = kMixAtOnce;
  // What only a first request pays, such as connections and memory touched for the first time.
  BenchPrompt first = prompts.front();
  first.token_ids.resize(std::min<size_t>(first.token_ids.size(), kWarmUpTokens));
  first.output_tokens = 2;
  SendPrompts(target, {first}, {0}, loop);
  return SendPrompts(target, prompts, std::vector<double>(prompts.size()), loop);
}

// CANCELLED, or the end of a process.
absl::StatusOr<AnswerTimes> MeasureCluster(const ClusterOptions& options) {
  LocalCluster cluster(options);
  BATON_RETURN_IF_ERROR(cluster.Start());
  TargetOptions router;
  router.address = cluster.address("router");
  router.ignore_eos = true;
  router.timeout = kMixAnswerWithin;
  const std::unique_ptr<BenchTarget> target = MakeTarget(router);
  BATON_ASSIGN_OR_RETURN(const std::vector<BenchPrompt> prompts, MixFor(target.get()));
  absl::Notification stop, ended;
  std::vector<Outcome> outcomes;  // the sender's until `ended`
  std::thread sender = NamedThread("mix-sender", [&] {
    outcomes = SendMix(target.get(), prompts, stop);
    ended.Notify();
  });
  absl::Status status;
  const absl::Time end = absl::Now() + kMixSendFor;
  while (status.ok() && !ended.HasBeenNotified()) {
    status = cluster.Listen(options.tick) ? absl::CancelledError("stopped") : cluster.CheckAlive();
    if ((!status.ok() || absl::Now() >= end) && !stop.HasBeenNotified()) stop.Notify();
  }
  if (!status.ok()) cluster.Kill("router");  // that ends the requests
  sender.join();
  BATON_RETURN_IF_ERROR(status);
  return AnswerTimesOf(outcomes);
}

}  // namespace

AnswerTimes AnswerTimesOf(const std::vector<Outcome>& outcomes) {
  AnswerTimes times;
  std::vector<double> ttft_ms, answer_ms, tpot_ms;
  for (const Outcome& outcome : outcomes) {
    // A refusal is quick, but no answer.
    if (!outcome.status.ok() && !absl::IsDeadlineExceeded(outcome.status)) continue;
    times.answers += outcome.status.ok();
    const double ended_ms = (outcome.ended_s - outcome.sent_s) * 1e3;
    answer_ms.push_back(ended_ms);
    ttft_ms.push_back(outcome.has_first() ? TimesOf(outcome).ttft_ms : ended_ms);
    if (outcome.token_s.size() > 1) tpot_ms.push_back(TimesOf(outcome).tpot_ms);
  }
  times.ttft_ms = MedianOrUnknown(std::move(ttft_ms));
  times.answer_ms = MedianOrUnknown(std::move(answer_ms));
  times.tpot_ms = MedianOrUnknown(std::move(tpot_ms));
  return times;
}

std::optional<PrefillChoice> ChoosePrefillByRule(const std::vector<std::string>& worker_flags,
                                                 int usable_cores, bool gpu_visible) {
  std::string device;
  for (size_t i = 0; i + 1 < worker_flags.size(); ++i) {
    if (worker_flags[i] == "--device") device = worker_flags[i + 1];
  }
  if (absl::StartsWith(device, "cuda") || (device == "auto" && gpu_visible)) {
    return PrefillChoice{0, "the workers would share one GPU and its memory"};
  }
  if (usable_cores == 1) return PrefillChoice{0, "the workers would share one core"};
  return std::nullopt;
}

PrefillChoice ChoosePrefillByTimes(const AnswerTimes& without,
                                   const absl::StatusOr<AnswerTimes>& with, int usable_cores) {
  if (!with.ok()) {
    return {0, absl::StrCat("with a prefill worker the cluster failed: ", with.status().message())};
  }
  std::string reason =
      absl::StrFormat("without a prefill worker %s, with one %s; medians, %d usable cores",
                      TimesText(without), TimesText(*with), usable_cores);
  if (std::min(without.answers, with->answers) < kFewestAnswers) {
    absl::StrAppend(&reason, "; ", kFewestAnswers, " answers were expected of each");
    return {0, std::move(reason)};
  }
  return {with->answer_ms < kBetterThanNoise * without.answer_ms ? 1 : 0, std::move(reason)};
}

absl::StatusOr<PrefillChoice> MeasurePrefill(const ClusterOptions& cluster, int usable_cores,
                                             std::ostream& progress) {
  progress << "baton up: measuring the cluster without a prefill worker" << std::endl;
  BATON_ASSIGN_OR_RETURN(const AnswerTimes without, MeasureCluster(MeasuredCluster(cluster, 0)));
  progress << "baton up: measuring it with one" << std::endl;
  const absl::StatusOr<AnswerTimes> with = MeasureCluster(MeasuredCluster(cluster, 1));
  if (absl::IsCancelled(with.status())) return with.status();
  return ChoosePrefillByTimes(without, with, usable_cores);
}

absl::StatusOr<PrefillChoice> ChoosePrefill(const ClusterOptions& cluster, std::ostream& progress) {
  const int cores = UsableCores();
  const bool gpu_visible = access("/dev/nvidiactl", F_OK) == 0;
  if (auto choice = ChoosePrefillByRule(cluster.worker_flags, cores, gpu_visible)) return *choice;
  return MeasurePrefill(cluster, cores, progress);
}

}  // namespace baton::cli
