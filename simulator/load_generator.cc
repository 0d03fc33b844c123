#include "simulator/load_generator.h"

#include <algorithm>
#include <cmath>

#include "simulator/random.h"

namespace baton::simulator {
namespace {

// Tokens that some prompts share: those in whole blocks are numbered, the rest is a remainder.
struct Text {
  std::vector<int32_t> blocks;
  int tokens = 0;
};

class Builder {
 public:
  explicit Builder(const char* name) { trace_.name = name; }

  // New tokens behind a text. A partial block of the text becomes whole under a new number, as its
  // tokens are behind other tokens for each continuation.
  Text Continue(Text text, int more_tokens) {
    text.tokens += more_tokens;
    while (static_cast<int>(text.blocks.size()) < text.tokens / kSimBlockTokens) {
      text.blocks.push_back(trace_.block_count++);
    }
    return text;
  }
  void Ask(double at_s, const Text& text) {
    trace_.requests.push_back({static_cast<int64_t>(at_s * 1e6), text.tokens, text.blocks});
  }
  // What the conversation is after an answer of so many tokens.
  Text Ask(double at_s, const Text& text, int output_tokens) {
    Text after = Continue(text, output_tokens);
    Ask(at_s, text);
    trace_.requests.back().output_tokens = output_tokens;
    trace_.requests.back().answer_blocks.assign(after.blocks.begin() + text.blocks.size(),
                                                after.blocks.end());
    return after;
  }
  // Shares nothing: its blocks are not worth numbers.
  void AskAlone(double at_s, int prompt_tokens, int output_tokens) {
    Ask(at_s, {{}, prompt_tokens});
    trace_.requests.back().output_tokens = output_tokens;
  }
  Trace Finish() {
    std::stable_sort(trace_.requests.begin(), trace_.requests.end(),
                     [](const auto& a, const auto& b) { return a.at_us < b.at_us; });
    return std::move(trace_);
  }

 private:
  Trace trace_;
};

}  // namespace

Trace AgentLoad(const LoadShape& shape) {
  constexpr double kMeanTurns = 8, kBranch = 1.0 / 6;
  constexpr int kMostTokens = 64'000;
  SimRandom random(shape.seed);
  Builder builder("agents");
  std::vector<Text> tools;
  for (int i = 0; i < 12; ++i) tools.push_back(builder.Continue({}, random.LogUniform(1500, 9000)));
  const Zipf popular(static_cast<int>(tools.size()), 1.0);
  double at_s = 0;
  for (int asked = 0; asked < shape.requests;) {
    at_s += random.Exponential(shape.mean_gap_s * kMeanTurns);
    double turn_s = at_s;
    std::vector<Text> turns = {tools[popular.Draw(&random)]};
    do {
      const bool branches = turns.size() > 2 && random.Uniform() < kBranch;
      const Text& from =
          branches ? turns[1 + random.Below(static_cast<int>(turns.size()) - 1)] : turns.back();
      turns.push_back(builder.Continue(from, random.LogUniform(200, 6000)));
      builder.Ask(turn_s, turns.back());
      turn_s += branches ? random.Exponential(1) : 2 + random.Exponential(20);
    } while (++asked < shape.requests && turns.back().tokens < kMostTokens &&
             random.Uniform() >= 1 / kMeanTurns);
  }
  return builder.Finish();
}

Trace SharedPrefixLoad(const LoadShape& shape) {
  SimRandom random(shape.seed + 1'000'003);
  Builder builder("shared");
  std::vector<Text> system, document;
  for (int i = 0; i < std::max(shape.requests / 40, 1); ++i) {
    system.push_back(builder.Continue({}, random.LogUniform(1000, 16'000)));
    document.push_back(builder.Continue(system.back(), random.LogUniform(2000, 30'000)));
  }
  const Zipf popular(static_cast<int>(system.size()), 1.1);
  double at_s = 0;
  for (int i = 0; i < shape.requests; ++i) {
    at_s += random.Exponential(shape.mean_gap_s);
    const int which = popular.Draw(&random);
    const Text& prefix = random.Below(3) == 0 ? document[which] : system[which];
    builder.Ask(at_s, builder.Continue(prefix, random.LogUniform(100, 4000)));
  }
  return builder.Finish();
}

Trace SessionLoad(const LoadShape& shape, double mean_think_s) {
  constexpr double kMeanTurns = 6, kToken_s = 0.03;
  constexpr int kMostTokens = 12'000;
  SimRandom random(shape.seed + 2'000'003);
  Builder builder("sessions");
  // Conversations are under way from the first moment on, so they begin long before it.
  const double end_s = shape.requests * shape.mean_gap_s;
  for (double at_s = -8 * kMeanTurns * mean_think_s; at_s < end_s;) {
    at_s += random.Exponential(shape.mean_gap_s * kMeanTurns);
    double turn_s = at_s;
    Text said;
    do {
      const Text prompt = builder.Continue(said, random.LogUniform(64, 2048));
      const int answer = random.LogUniform(32, 512);
      said = turn_s >= 0 && turn_s < end_s ? builder.Ask(turn_s, prompt, answer)
                                           : builder.Continue(prompt, answer);
      turn_s += answer * kToken_s + random.Exponential(mean_think_s);
    } while (said.tokens < kMostTokens && random.Uniform() >= 1 / kMeanTurns);
  }
  return builder.Finish();
}

Trace PoissonLoad(const LoadShape& shape) {
  SimRandom random(shape.seed + 3'000'003);
  Builder builder("poisson");
  double at_s = 0;
  for (int i = 0; i < shape.requests; ++i) {
    at_s += random.Exponential(shape.mean_gap_s);
    const int prompt = random.LogUniform(shape.least_prompt, shape.prompt_end);
    builder.AskAlone(at_s, prompt, random.LogUniform(shape.least_answer, shape.answer_end));
  }
  return builder.Finish();
}

Trace BurstLoad(const LoadShape& shape, int at_once) {
  SimRandom random(shape.seed + 4'000'003);
  Builder builder("bursts");
  for (int i = 0; i < shape.requests; ++i) {
    const double at_s = i / at_once * shape.mean_gap_s * at_once;
    const int prompt = random.LogUniform(64, 1024);
    builder.AskAlone(at_s, prompt, random.LogUniform(64, 256));
  }
  return builder.Finish();
}

Trace HeavyTailLoad(const LoadShape& shape) {
  constexpr double kLeast = 32, kExponent = 1.2, kMost = 8192;
  SimRandom random(shape.seed + 5'000'003);
  Builder builder("heavy tail");
  double at_s = 0;
  for (int i = 0; i < shape.requests; ++i) {
    at_s += random.Exponential(shape.mean_gap_s);
    const int prompt = random.LogUniform(64, 1024);
    const double answer = kLeast * std::pow(1 - random.Uniform(), -1 / kExponent);
    builder.AskAlone(at_s, prompt, static_cast<int>(std::min(answer, kMost)));
  }
  return builder.Finish();
}

}  // namespace baton::simulator
