#include "cli/bench/agent.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/bench/agent_report.h"
#include "cli/generate.h"
#include "cli/progress.h"
#include "client/cpp/convert.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

// Runs all conversations once. Each caller of a closed loop runs one conversation after another.
class ConversationRun {
 public:
  // `salt`: prefixes cached under another one are not found.
  ConversationRun(const AgentOptions& options, const Conversations& work, std::string retention,
                  std::string salt, const absl::Notification* stop, Progress* progress)
      : options_(options),
        work_(work),
        retention_(std::move(retention)),
        salt_(std::move(salt)),
        stop_(*stop),
        progress_(progress) {}

  AgentPass Run(LoadGenerator* generator) {
    const int callers =
        std::min(static_cast<int>(work_.conversations.size()), options_.max_concurrency);
    callers_.resize(callers);
    start_s_ = NowSeconds();
    generator->RunClosedLoop(
        callers, [this](int caller) { return Next(&callers_[caller]); },
        [this](int caller, Outcome outcome) { End(&callers_[caller], std::move(outcome)); });
    absl::MutexLock lock(&mutex_);
    pass_.retention = retention_;
    pass_.duration_s = NowSeconds() - start_s_;
    return std::move(pass_);
  }

 private:
  // Used by one thread.
  struct Caller {
    const Conversation* conversation = nullptr;
    size_t turn = 0;
    double start_s = 0, last_end_s = 0;
    std::vector<int32_t> tokens;  // prompts and answers so far
    int known_tokens = 0;
  };

  std::optional<LoadRequest> Next(Caller* caller) {
    if (caller->conversation == nullptr || caller->turn == caller->conversation->turns.size()) {
      const size_t number = next_++;
      if (number >= work_.conversations.size()) return std::nullopt;
      *caller = {};
      caller->conversation = &work_.conversations[number];
      caller->start_s = std::max(start_s_ + caller->conversation->start_s, NowSeconds());
    }
    const ConversationTurn& turn = caller->conversation->turns[caller->turn];
    const double due_s = std::max(caller->start_s + turn.at_s, caller->last_end_s + turn.think_s);
    if (stop_.WaitForNotificationWithTimeout(absl::Seconds(std::max(0.0, due_s - NowSeconds())))) {
      return std::nullopt;
    }
    caller->known_tokens = caller->turn > 0        ? static_cast<int>(caller->tokens.size())
                           : any_first_turn_ended_ ? work_.shared_tokens
                                                   : 0;
    caller->tokens.insert(caller->tokens.end(), turn.tokens.begin(), turn.tokens.end());
    client::GenerateRequest request;
    request.model = options_.target.model;
    request.token_ids = caller->tokens;
    request.max_tokens = turn.output_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0.0f;
    request.cache_salt = salt_;
    request.return_token_ids = true;
    if (retention_ != "off") {
      request.retention = {{}, options_.retention_priority, options_.retention_ttl_ms};
      if (retention_ == "tools") request.retention->until_token = work_.shared_tokens;
    }
    LoadRequest load;
    load.request = client::ToProto(request);
    load.timeout = options_.target.timeout;
    return load;
  }

  void End(Caller* caller, Outcome outcome) {
    const int turn = static_cast<int>(caller->turn++);
    caller->last_end_s = outcome.ended_s;
    caller->tokens.insert(caller->tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
    const auto left = static_cast<int>(caller->conversation->turns.size() - caller->turn);
    if (!outcome.status.ok()) caller->conversation = nullptr;
    if (outcome.status.ok() && turn == 0) any_first_turn_ended_ = true;
    progress_->Advance(1);
    absl::MutexLock lock(&mutex_);
    if (!outcome.status.ok()) pass_.turns_skipped += left;
    pass_.turns.push_back({turn, caller->known_tokens, std::move(outcome)});
  }

  const AgentOptions& options_;
  const Conversations& work_;
  const std::string retention_, salt_;
  const absl::Notification& stop_;
  Progress* const progress_;
  double start_s_ = 0;
  std::vector<Caller> callers_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> any_first_turn_ended_{false};
  absl::Mutex mutex_;
  AgentPass pass_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<AgentResult> MeasureAgent(const AgentOptions& options, std::ostream& err) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         RouterChannel(options.target.address, options.target.access));
  LoadGenerator generator(channel);
  const absl::StatusOr<v1::Model> model = generator.GetModel();
  if (!model.ok()) {
    return Annotate(model.status(), absl::StrCat("router at ", options.target.address));
  }
  BATON_ASSIGN_OR_RETURN(
      const Conversations work,
      MakeConversations(options.conversations,
                        options.vocab_size > 0 ? options.vocab_size : model->vocab_size(),
                        model->max_model_len()));
  AgentResult result;
  result.date = BenchDate();
  result.model = options.target.model.empty() ? model->id() : options.target.model;
  result.conversations = static_cast<int>(work.conversations.size());
  result.shared_tokens = work.shared_tokens;
  result.turns_left_out = work.turns_left_out;
  int64_t turns = 0;
  for (const Conversation& conversation : work.conversations) {
    turns += static_cast<int64_t>(conversation.turns.size());
  }
  absl::Notification stop;
  ShutdownWatch ctrl_c([&stop] {
    if (!stop.HasBeenNotified()) stop.Notify();
  });
  turns *= static_cast<int64_t>(options.retentions.size());
  Progress progress(err, options.output.progress, "turns", turns);
  for (const std::string& retention : options.retentions) {
    // No pass finds the prefixes of another.
    const std::string salt = absl::StrCat("bench-agent-", absl::GetCurrentTimeNanos());
    ConversationRun run(options, work, retention, salt, &stop, &progress);
    result.passes.push_back(run.Run(&generator));
  }
  return result;
}

}  // namespace

int RunAgent(const AgentOptions& options, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<AgentResult> result = MeasureAgent(options, err);
  if (!result.ok()) {
    err << "baton bench agent: " << Describe(result.status()) << std::endl;
    return ExitCode(result.status());
  }
  const std::vector<std::string> parts = absl::StrSplit(result->model, '/');
  const std::string& label = options.output.label;
  const absl::Status written = Write(
      options.output,
      {FormatAgent(*result, options), AgentJson(*result, options), AgentPlot(*result, options),
       absl::StrCat(label.empty() ? "agent" : label, "-", parts.back(), "-", result->date,
                    ".json")},
      out);
  if (!written.ok()) {
    err << "baton bench agent: " << written.message() << std::endl;
    return kExitFailure;
  }
  const bool any_ok = absl::c_any_of(result->passes, [](const AgentPass& pass) {
    return absl::c_any_of(pass.turns, [](const AgentTurn& t) { return t.outcome.status.ok(); });
  });
  return any_ok ? kExitOk : kExitFailure;
}

}  // namespace baton::cli
