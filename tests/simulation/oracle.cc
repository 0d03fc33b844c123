#include "tests/simulation/oracle.h"

#include <algorithm>
#include <utility>

#include "decode_worker/beam_search.h"
#include "tests/simulation/hash_engine.h"

namespace baton::simulation {
namespace {

// A sequence as the model sees it.
struct Text {
  explicit Text(const RequestSpec& spec) : spec(&spec) {
    for (const int32_t token : spec.prompt) Append(token);
  }
  void Append(int32_t token) {
    tokens.push_back(token);
    hash.Append(token);
  }
  // For the next token.
  model::SamplingHistory History() const {
    model::SamplingHistory history;
    history.tokens = tokens;
    history.prompt_tokens = static_cast<int>(spec->prompt.size());
    const int generated = static_cast<int>(tokens.size()) - history.prompt_tokens;
    if (generated < spec->min_tokens) history.suppressed = spec->stop_token_ids;
    return history;
  }

  const RequestSpec* spec;
  std::vector<int32_t> tokens;
  HashOracle hash;
};

// The search's decisions are production code, which has tests of its own; here it is about the
// blocks that beams share.
std::vector<Answer> BestBeams(const RequestSpec& spec) {
  decode_worker::BeamSearch::Options options;
  options.width = spec.beam_width;
  options.n = spec.n;
  options.length_penalty = spec.length_penalty;
  options.max_tokens = spec.max_tokens;
  options.min_tokens = spec.min_tokens;
  options.stop_token_ids.insert(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  decode_worker::BeamSearch search(options);
  std::vector<Text> beams = {Text(spec)};
  while (!beams.empty()) {
    std::vector<std::vector<model::SampledToken>> proposed;
    for (const Text& beam : beams) {
      proposed.push_back(HashBest(beam.hash.digest(), beam.History(), search.proposals()));
    }
    std::vector<Text> next;
    for (const auto& [parent, token] : search.Advance(proposed)) {
      next.push_back(beams[static_cast<size_t>(parent)]);
      next.back().Append(token);
    }
    beams = std::move(next);
  }
  std::vector<Answer> answers;
  for (const decode_worker::BeamSearch::Answer& best : search.Best()) {
    Answer answer;
    answer.stopped = best.stopped;
    answer.beam_score = best.score;
    for (const int32_t token : best.token_ids) answer.tokens.emplace_back().token_id = token;
    answers.push_back(std::move(answer));
  }
  return answers;
}

Answer Sampled(const RequestSpec& spec, int choice) {
  Text text(spec);
  model::SamplingParams params = spec.sampling;
  params.choice += static_cast<uint32_t>(choice);
  Answer answer;
  while (static_cast<int>(answer.tokens.size()) < spec.max_tokens && !answer.stopped) {
    answer.tokens.push_back(
        HashDraw(text.hash.digest(), params, text.History(), text.tokens.size()));
    const int32_t token = answer.tokens.back().token_id;
    answer.stopped = std::find(spec.stop_token_ids.begin(), spec.stop_token_ids.end(), token) !=
                     spec.stop_token_ids.end();
    text.Append(token);
  }
  return answer;
}

}  // namespace

std::vector<Answer> OracleAnswers(const RequestSpec& spec) {
  if (spec.beam_width > 0) return BestBeams(spec);
  std::vector<Answer> answers;
  for (int choice = 0; choice < spec.n; ++choice) answers.push_back(Sampled(spec, choice));
  return answers;
}

std::vector<model::SampledToken> OraclePromptLogprobs(const RequestSpec& spec) {
  std::vector<model::SampledToken> logprobs;
  if (!spec.prompt_logprobs) return logprobs;
  HashOracle oracle;
  for (size_t i = 0; i + 1 < spec.prompt.size(); ++i) {
    oracle.Append(spec.prompt[i]);
    logprobs.push_back(HashLogprobs(oracle.digest(), spec.prompt[i + 1], *spec.prompt_logprobs));
  }
  return logprobs;
}

}  // namespace baton::simulation
