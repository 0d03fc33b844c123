#include "cli/bench/target.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/convert.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

class RouterTarget : public BenchTarget {
 public:
  explicit RouterTarget(const TargetOptions& options) : options_(options) {}

  absl::StatusOr<TargetModel> Connect() override {
    BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                           RouterChannel(options_.address, options_.access));
    generator_.emplace(channel);
    const auto model = generator_->GetModel();
    if (!model.ok()) {
      return Annotate(model.status(), absl::StrCat("router at ", options_.address));
    }
    return TargetModel{options_.model.empty() ? model->id() : options_.model, model->vocab_size(),
                       model->max_model_len()};
  }

  TokenCounter Counter() override {
    return [this](const std::string& text) -> absl::StatusOr<int> {
      BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                             generator_->Tokenize(text, /*add_special_tokens=*/false));
      return static_cast<int>(ids.size());
    };
  }

  void Send(const BenchPrompt& prompt, int number, double due_s,
            std::function<void(Outcome)> done) override {
    client::GenerateRequest request;
    request.model = options_.model;
    request.text = prompt.text;
    if (prompt.text.empty()) request.token_ids = prompt.token_ids;
    request.max_tokens = prompt.output_tokens;
    request.ignore_eos = options_.ignore_eos;
    request.sampling = options_.sampling;
    request.sampling.seed = options_.sampling.seed.value_or(0) + static_cast<uint64_t>(number);
    LoadRequest load;
    load.request = client::ToProto(request);
    load.timeout = options_.timeout;
    load.kind = number;
    load.keep_text = options_.keep_text;
    generator_->Send(load, due_s, std::move(done));
  }

 private:
  const TargetOptions options_;
  std::optional<LoadGenerator> generator_;  // from Connect() on
};

}  // namespace

std::vector<Outcome> SendPrompts(BenchTarget* target, const std::vector<BenchPrompt>& prompts,
                                 const std::vector<double>& times, const OpenLoopOptions& loop) {
  size_t next = 0;
  std::vector<Outcome> outcomes = RunOpenLoop(
      [&]() -> std::optional<TimedSend> {
        if (next == prompts.size()) return std::nullopt;
        const size_t number = next++;
        return TimedSend{
            times[number], [&, number](double due_s, std::function<void(Outcome)> done) {
              target->Send(prompts[number], static_cast<int>(number), due_s, std::move(done));
            }};
      },
      loop);
  std::sort(outcomes.begin(), outcomes.end(),
            [](const Outcome& a, const Outcome& b) { return a.kind < b.kind; });
  return outcomes;
}

std::unique_ptr<BenchTarget> MakeTarget(const TargetOptions& options) {
  if (options.backend != "baton") return MakeHttpTarget(options);
  return std::make_unique<RouterTarget>(options);
}

}  // namespace baton::cli
