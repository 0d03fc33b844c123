#include "benchmarks/serving/traffic.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "benchmarks/serving/cluster_flags.h"

namespace baton::benchmarks {
namespace {

constexpr int kMaxTokens = 1 << 20;

absl::Status BadMix(const std::string& text) {
  return absl::InvalidArgumentError(
      absl::StrCat("mix \"", text, "\": expected WEIGHT:LOW-HIGH:LOW-HIGH,..., lengths from 1"));
}

bool ParseRange(absl::string_view text, int* low, int* high) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  return ends.size() <= 2 && absl::SimpleAtoi(ends.front(), low) &&
         absl::SimpleAtoi(ends.back(), high) && 1 <= *low && *low <= *high && *high <= kMaxTokens;
}

LoadRequest DrawRequest(const TrafficMix& mix, const LoadOptions& options, Random* random) {
  const Shape shape = mix.Draw(random);
  LoadRequest request = MakeRequest(shape, options.vocab_size, random);
  if (options.timeout) request.timeout = options.timeout(shape.answer_tokens);
  return request;
}

}  // namespace

absl::StatusOr<TrafficMix> TrafficMix::Parse(const std::string& text) {
  TrafficMix mix;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(part, ':');
    Kind kind;
    const bool well_formed = fields.size() == 3 && absl::SimpleAtod(fields[0], &kind.weight) &&
                             kind.weight > 0 && std::isfinite(kind.weight) &&
                             ParseRange(fields[1], &kind.prompt_low, &kind.prompt_high) &&
                             ParseRange(fields[2], &kind.answer_low, &kind.answer_high);
    if (!well_formed) return BadMix(text);
    mix.kinds_.push_back(kind);
    mix.total_weight_ += kind.weight;
  }
  return mix;
}

Shape TrafficMix::Draw(Random* random) const {
  double at = random->Uniform() * total_weight_;
  size_t chosen = 0;
  while (chosen + 1 < kinds_.size() && at >= kinds_[chosen].weight) at -= kinds_[chosen++].weight;
  const Kind& kind = kinds_[chosen];
  Shape shape;
  shape.prompt_tokens = random->Between(kind.prompt_low, kind.prompt_high);
  shape.answer_tokens = random->Between(kind.answer_low, kind.answer_high);
  shape.mix_class = static_cast<int>(chosen);
  return shape;
}

int TrafficMix::longest() const {
  int longest = 0;
  for (const Kind& kind : kinds_) longest = std::max(longest, kind.prompt_high + kind.answer_high);
  return longest;
}

LoadRequest MakeRequest(const std::vector<int32_t>& prompt, int answer_tokens) {
  LoadRequest load;
  load.request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  load.request.mutable_stop()->set_max_tokens(answer_tokens);
  load.request.mutable_stop()->set_ignore_eos(true);
  load.request.mutable_sampling()->set_temperature(0);
  // Then no token is held back for want of whole UTF-8.
  load.request.set_return_token_ids(true);
  return load;
}

LoadRequest MakeRequest(const Shape& shape, int vocab_size, Random* random) {
  LoadRequest load =
      MakeRequest(random->Tokens(shape.prompt_tokens, vocab_size), shape.answer_tokens);
  load.request.mutable_sampling()->set_seed(random->Next());
  load.kind = shape.mix_class;
  return load;
}

int VocabSizeOf(LoadGenerator* generator) {
  const auto model = generator->GetModel();
  if (!model.ok()) Die(model.status());
  return model->vocab_size();
}

std::vector<Outcome> RunOpenLoop(LoadGenerator* generator, const TrafficMix& mix,
                                 const LoadOptions& options) {
  Random random(options.seed);
  double at_s = 0;
  return generator->RunOpenLoop([&]() -> std::optional<LoadGenerator::Arrival> {
    at_s += random.Exponential(options.rate);
    if (at_s >= options.duration_s) return std::nullopt;
    return LoadGenerator::Arrival{at_s, DrawRequest(mix, options, &random)};
  });
}

std::vector<Outcome> RunClosedLoop(LoadGenerator* generator, const TrafficMix& mix, int callers,
                                   const LoadOptions& options) {
  const double end_s = NowSeconds() + options.duration_s;
  std::vector<Random> random;
  for (int i = 0; i < callers; ++i) {
    random.emplace_back(options.seed + 1'000'003 * static_cast<uint64_t>(i + 1));
  }
  absl::Mutex mutex;
  std::vector<Outcome> outcomes;  // guarded by mutex
  generator->RunClosedLoop(
      callers,
      [&](int caller) -> std::optional<LoadRequest> {
        if (NowSeconds() >= end_s) return std::nullopt;
        return DrawRequest(mix, options, &random[caller]);
      },
      [&](int, Outcome outcome) {
        absl::MutexLock lock(&mutex);
        outcomes.push_back(std::move(outcome));
      });
  return outcomes;
}

}  // namespace baton::benchmarks
