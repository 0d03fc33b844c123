#include "cli/bench/judge.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "cli/bench/judge_report.h"
#include "cli/bench/score.h"
#include "cli/generate.h"
#include "cli/http_client.h"
#include "cli/progress.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kVersionWithin = absl::Seconds(10);
// For the verdict score: one token in most vocabularies.
const std::vector<std::string> kScoreLabels = {"A", "B"};

// As vLLM and llama-server report their versions; empty if the server has neither way.
std::string VersionOf(const std::string& url) {
  HttpClient http;
  for (const auto& [path, key] : {std::pair("/version", "version"), {"/props", "build_info"}}) {
    HttpRequest request;
    request.url = absl::StrCat(absl::StripSuffix(url, "/"), path);
    request.timeout = kVersionWithin;
    const absl::StatusOr<HttpResponse> response = http.SendAndWait(std::move(request));
    if (!response.ok() || response->status != 200) continue;
    const auto parsed = nlohmann::json::parse(response->body, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object() && parsed.contains(key) && parsed[key].is_string()) return parsed[key];
  }
  return "";
}

// A server that gets the items.
struct Judge {
  std::string name;  // JudgePhase::server
  std::unique_ptr<BenchTarget> target;
  bool as_token_ids = false;                          // even if the prompts are texts
  std::unique_ptr<v1::InferenceService::Stub> score;  // null: verdicts score are as token
};

struct JudgePrompt {
  BenchPrompt prompt;
  size_t rubric_bytes = 0;  // of the text, at its beginning
};

// The prompts of a round and verdict, the same for each server.
struct RoundPrompts {
  std::vector<JudgePrompt> cold;  // an item, then, where depth is measured, a rubric alone, ...
  JudgePrompt primer;             // puts the rubric of the warm ones into the cache
  std::vector<JudgePrompt> warm;
};

// Whether a rubric alone is sent after each cold item, for ComputeItemMs().
bool MeasuresDepth(const std::string& verdict) { return verdict != "text"; }

// To each server.
int64_t RequestsOf(const JudgeOptions& options) {
  int64_t of_round = 0;
  for (const std::string& verdict : options.verdicts) {
    of_round += options.cold_items * (MeasuresDepth(verdict) ? 2 : 1) + 1 + options.items;
  }
  return of_round * options.rounds;
}

class JudgeRun {
 public:
  JudgeRun(const JudgeOptions& options, std::vector<Judge> judges, int vocab_size,
           LoadGenerator* router, Progress* progress)
      : options_(options),
        judges_(std::move(judges)),
        vocab_size_(vocab_size),
        router_(router),
        progress_(progress),
        random_(options.seed),
        ctrl_c_([this] {
          if (!stop_.HasBeenNotified()) stop_.Notify();
        }) {}

  absl::Status Run(std::vector<JudgePhase>* phases) {
    for (int round = 0; round < options_.rounds; ++round) {
      for (const std::string& verdict : options_.verdicts) {
        if (stop_.HasBeenNotified()) return absl::OkStatus();
        BATON_ASSIGN_OR_RETURN(const RoundPrompts prompts, MakeRound(verdict));
        // In turn, so that none is always the one that finds the machine warm.
        for (size_t i = 0; i < judges_.size(); ++i) {
          if (stop_.HasBeenNotified()) return absl::OkStatus();
          RunCold(judges_[(i + round) % judges_.size()], verdict, round, prompts.cold, phases);
          RunWarm(judges_[(i + round) % judges_.size()], verdict, round, prompts, phases);
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<RoundPrompts> MakeRound(const std::string& verdict) {
    const TokenCounter count = judges_.front().target->Counter();
    const auto make = [&](int items) {
      return MakeJudgeSet(options_.shape, items, vocab_size_, count, &random_);
    };
    RoundPrompts prompts;
    for (int i = 0; i < options_.cold_items; ++i) {
      BATON_ASSIGN_OR_RETURN(JudgeSet cold, make(1));
      prompts.cold.push_back({std::move(cold.items[0]), cold.rubric.text.size()});
      if (!MeasuresDepth(verdict)) continue;
      BATON_ASSIGN_OR_RETURN(JudgeSet alone, make(0));
      prompts.cold.push_back({alone.rubric, alone.rubric.text.size()});
    }
    BATON_ASSIGN_OR_RETURN(JudgeSet warm, make(options_.items + 1));
    for (BenchPrompt& item : warm.items) {
      prompts.warm.push_back({std::move(item), warm.rubric.text.size()});
    }
    const int output_tokens = verdict == "text" ? options_.verdict_tokens : 1;
    for (std::vector<JudgePrompt>* some : {&prompts.cold, &prompts.warm}) {
      for (JudgePrompt& prompt : *some) {
        prompt.prompt.output_tokens = output_tokens;
        BATON_RETURN_IF_ERROR(AddTokenIds(&prompt.prompt));
      }
    }
    prompts.primer = std::move(prompts.warm.back());
    prompts.warm.pop_back();
    prompts.primer.prompt.output_tokens = 1;
    return prompts;
  }

  // To a prompt that is a text, as the router makes them, if a server needs them.
  absl::Status AddTokenIds(BenchPrompt* prompt) {
    if (!options_.shape.texts || !judges_.back().as_token_ids) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(prompt->token_ids,
                           router_->Tokenize(prompt->text, /*add_special_tokens=*/true));
    return absl::OkStatus();
  }

  // Returns the outcomes in the order of the prompts; fewer after Ctrl-C.
  std::vector<Outcome> Ask(const Judge& judge, const std::string& verdict,
                           const std::vector<JudgePrompt>& prompts, int concurrency) {
    if (verdict == "score" && judge.score != nullptr) return Score(judge, prompts, concurrency);
    std::vector<BenchPrompt> sent;
    for (const JudgePrompt& prompt : prompts) {
      sent.push_back(prompt.prompt);
      if (judge.as_token_ids) sent.back().text.clear();
    }
    OpenLoopOptions loop;
    loop.stop = &stop_;
    loop.max_concurrency = concurrency;
    loop.on_end = [this](const Outcome&) { progress_->Advance(1); };
    return SendPrompts(judge.target.get(), sent, std::vector<double>(sent.size()), loop);
  }

  // One at a time, or all in one call: then they have one rubric.
  std::vector<Outcome> Score(const Judge& judge, const std::vector<JudgePrompt>& prompts,
                             int concurrency) {
    const size_t of_call = concurrency == 1 ? 1 : prompts.size();
    std::vector<Outcome> outcomes;
    for (size_t begin = 0; begin < prompts.size(); begin += of_call) {
      if (stop_.HasBeenNotified()) break;
      const JudgePrompt& first = prompts[begin];
      ScoreCall call;
      call.model = options_.target.model;
      call.prefix = first.prompt.text.substr(0, first.rubric_bytes);
      call.labels = kScoreLabels;
      call.timeout = options_.target.timeout;
      for (size_t i = begin; i < begin + of_call; ++i) {
        call.items.push_back(prompts[i].prompt.text.substr(prompts[i].rubric_bytes));
      }
      for (Outcome& outcome : ScoreItems(judge.score.get(), call)) {
        outcome.kind += static_cast<int>(begin);
        outcomes.push_back(std::move(outcome));
      }
      progress_->Advance(static_cast<int64_t>(of_call));
    }
    return outcomes;
  }

  void RunCold(const Judge& judge, const std::string& verdict, int round,
               const std::vector<JudgePrompt>& prompts, std::vector<JudgePhase>* phases) {
    JudgePhase cold{judge.name, verdict, "cold", round, 0, {}};
    JudgePhase rubric{judge.name, verdict, "rubric", round, 0, {}};
    for (Outcome& outcome : Ask(judge, verdict, prompts, 1)) {
      const bool alone = MeasuresDepth(verdict) && outcome.kind % 2 == 1;
      JudgePhase& phase = alone ? rubric : cold;
      phase.wall_s += outcome.ended_s - outcome.sent_s;
      phase.outcomes.push_back(std::move(outcome));
    }
    phases->push_back(std::move(cold));
    if (MeasuresDepth(verdict)) phases->push_back(std::move(rubric));
  }

  void RunWarm(const Judge& judge, const std::string& verdict, int round,
               const RoundPrompts& prompts, std::vector<JudgePhase>* phases) {
    Ask(judge, verdict, {prompts.primer}, 1);
    JudgePhase warm{judge.name, verdict, "warm", round, 0, {}};
    const double start_s = NowSeconds();
    warm.outcomes = Ask(judge, verdict, prompts.warm, options_.concurrency);
    warm.wall_s = NowSeconds() - start_s;
    phases->push_back(std::move(warm));
  }

  const JudgeOptions& options_;
  const std::vector<Judge> judges_;
  const int vocab_size_;
  LoadGenerator* const router_;
  Progress* const progress_;
  Random random_;
  absl::Notification stop_;
  ShutdownWatch ctrl_c_;
};

// What both servers are asked for: verdicts that depend on the prompt alone, of exact lengths.
TargetOptions Fixed(TargetOptions target) {
  target.sampling.temperature = 0;
  target.ignore_eos = true;
  return target;
}

absl::StatusOr<JudgeResult> MeasureJudge(const JudgeOptions& options, std::ostream& err) {
  JudgeResult result;
  result.date = BenchDate();
  std::vector<Judge> judges;
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         RouterChannel(options.target.address, options.target.access));
  judges.push_back(
      {"baton", MakeTarget(Fixed(options.target)), false, v1::InferenceService::NewStub(channel)});
  BATON_ASSIGN_OR_RETURN(const TargetModel model, judges.front().target->Connect());
  result.model = model.id;
  if (!options.peer.empty()) {
    TargetOptions peer;
    peer.backend = "openai";
    peer.base_url = options.peer;
    peer.model = options.peer_model;
    judges.push_back({"peer", MakeTarget(Fixed(std::move(peer))), true, nullptr});
    BATON_ASSIGN_OR_RETURN(const TargetModel theirs, judges.back().target->Connect());
    result.peer_model = theirs.id;
    result.peer_version = VersionOf(options.peer);
  }
  const int vocab_size = options.vocab_size > 0 ? options.vocab_size : model.vocab_size;
  const int64_t requests = RequestsOf(options) * static_cast<int64_t>(judges.size());
  Progress progress(err, options.output.progress, "requests", requests);
  LoadGenerator router(channel);
  JudgeRun run(options, std::move(judges), vocab_size, &router, &progress);
  BATON_RETURN_IF_ERROR(run.Run(&result.phases));
  return result;
}

}  // namespace

int RunJudge(const JudgeOptions& options, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<JudgeResult> result = MeasureJudge(options, err);
  if (!result.ok()) {
    err << "baton bench judge: " << Describe(result.status()) << std::endl;
    return ExitCode(result.status());
  }
  const std::vector<std::string> parts = absl::StrSplit(result->model, '/');
  const std::string& label = options.output.label;
  const absl::Status written = Write(
      options.output,
      {FormatJudge(*result, options), JudgeJson(*result, options), JudgePlot(*result, options),
       absl::StrCat(label.empty() ? "judge" : label, "-", parts.back(), "-", result->date,
                    ".json")},
      out);
  if (!written.ok()) {
    err << "baton bench judge: " << written.message() << std::endl;
    return kExitFailure;
  }
  const bool any_ok = absl::c_any_of(result->phases, [](const JudgePhase& phase) {
    return absl::c_any_of(phase.outcomes, [](const Outcome& o) { return o.status.ok(); });
  });
  return any_ok ? kExitOk : kExitFailure;
}

}  // namespace baton::cli
