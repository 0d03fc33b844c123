#include "tests/simulation/oracle.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "decode_worker/beam_search.h"
#include "tests/simulation/hash_engine.h"
#include "tests/simulation/vocabulary.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::simulation {
namespace {

std::vector<int32_t> StopTokens(const RequestSpec& spec) {
  std::vector<int32_t> stops = spec.stop_token_ids;
  if (!spec.ignore_eos) stops.push_back(testing::kEndToken);
  return stops;
}

// A sequence as the model sees it.
struct Text {
  Text(const RequestSpec& spec, const std::vector<int32_t>& stop_tokens)
      : spec(&spec), stop_tokens(&stop_tokens), hash(spec.window, spec.recurrent) {
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
    if (generated < spec->min_tokens) history.suppressed = *stop_tokens;
    return history;
  }

  const RequestSpec* spec;
  const std::vector<int32_t>* stop_tokens;
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
  const std::vector<int32_t> stop_tokens = StopTokens(spec);
  options.stop_token_ids.insert(stop_tokens.begin(), stop_tokens.end());
  decode_worker::BeamSearch search(options);
  std::vector<Text> beams = {Text(spec, stop_tokens)};
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
  const std::vector<int32_t> stop_tokens = StopTokens(spec);
  Text text(spec, stop_tokens);
  model::SamplingParams params = spec.sampling;
  params.choice += static_cast<uint32_t>(choice);
  Answer answer;
  while (static_cast<int>(answer.tokens.size()) < spec.max_tokens && !answer.stopped) {
    answer.tokens.push_back(
        HashDraw(text.hash.digest(), params, text.History(), text.tokens.size()));
    const int32_t token = answer.tokens.back().token_id;
    answer.stopped = std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end();
    text.Append(token);
  }
  return answer;
}

// The text of the first `count` tokens.
std::string TextOf(const Answer& answer, size_t count) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(answer.tokens[i].token_id);
  absl::StatusOr<std::string> text = HashTokenizer().Decode(ids, /*skip_special_tokens=*/true);
  BATON_CHECK(text.ok()) << text.status();
  return *std::move(text);
}

// How much of the text is certain while it is only the first `count` tokens: they may end within a
// character.
size_t CertainBytes(const Answer& answer, const std::string& text, size_t count) {
  const std::string begun = TextOf(answer, count);
  return static_cast<size_t>(
      std::mismatch(begun.begin(), begun.end(), text.begin(), text.end()).first - begun.begin());
}

// Cuts it at the stop string that is complete first; of those that end together, at the longest.
void ApplyStops(const RequestSpec& spec, Answer* answer) {
  // A stop token is no part of the text.
  const size_t told = answer->tokens.size() - (answer->stopped ? 1 : 0);
  const std::string text = TextOf(*answer, told);
  answer->text = text;
  size_t before = 0;
  for (size_t count = 1; count <= told && !spec.stops.empty(); ++count) {
    const size_t certain = count == told ? text.size() : CertainBytes(*answer, text, count);
    size_t begin = 0, end = std::string::npos;
    for (const std::string& stop : spec.stops) {
      // Complete with this token: it ends behind what the tokens before it say.
      const size_t first = before < stop.size() ? 0 : before - stop.size() + 1;
      const size_t at = text.find(stop, first);
      if (at == std::string::npos || at + stop.size() > certain) continue;
      if (at + stop.size() > end || (at + stop.size() == end && at >= begin)) continue;
      begin = at;
      end = at + stop.size();
    }
    before = certain;
    if (end == std::string::npos || static_cast<int>(count) < spec.min_tokens) continue;
    answer->tokens.resize(count);
    answer->matched_stop = text.substr(begin, end - begin);
    answer->text = text.substr(0, begin);
    answer->stopped = true;
    return;
  }
}

std::vector<model::SampledToken> PromptLogprobs(const RequestSpec& spec) {
  std::vector<model::SampledToken> logprobs;
  if (!spec.prompt_logprobs) return logprobs;
  HashOracle oracle(spec.window, spec.recurrent);
  for (size_t i = 0; i + 1 < spec.prompt.size(); ++i) {
    oracle.Append(spec.prompt[i]);
    logprobs.push_back(HashLogprobs(oracle.digest(), spec.prompt[i + 1], *spec.prompt_logprobs));
  }
  return logprobs;
}

}  // namespace

v1::GenerateRequest ToProto(const RequestSpec& spec, const std::string& request_id) {
  v1::GenerateRequest request;
  request.set_request_id(request_id);
  if (spec.prompt_as_text) {
    request.set_text(std::string(spec.prompt.begin(), spec.prompt.end()));
  } else {
    request.mutable_token_ids()->mutable_ids()->Add(spec.prompt.begin(), spec.prompt.end());
  }
  if (spec.beam_width > 0) {
    request.set_beam_width(spec.beam_width);
    request.set_length_penalty(spec.length_penalty);
  } else {
    request.mutable_sampling()->set_temperature(spec.sampling.temperature);
    request.mutable_sampling()->set_seed(spec.sampling.seed);
    request.mutable_sampling()->set_repetition_penalty(spec.sampling.repetition_penalty);
  }
  if (spec.sampling.logprobs) request.set_logprobs(*spec.sampling.logprobs);
  request.set_n(spec.n);
  v1::StopConditions& stop = *request.mutable_stop();
  stop.set_max_tokens(spec.max_tokens);
  stop.set_min_tokens(spec.min_tokens);
  stop.mutable_stop_token_ids()->Add(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  stop.set_ignore_eos(spec.ignore_eos);
  for (const std::string& text : spec.stops) stop.add_stop(text);
  if (spec.prompt_logprobs) request.set_prompt_logprobs(*spec.prompt_logprobs);
  request.set_return_token_ids(spec.return_token_ids);
  request.set_priority(spec.priority);
  request.set_tenant(spec.tenant);
  request.set_cache_salt(spec.cache_salt);
  return request;
}

Expected Oracle(const RequestSpec& spec) {
  Expected expected;
  if (spec.beam_width > 0) {
    expected.answers = BestBeams(spec);
  } else {
    for (int choice = 0; choice < spec.n; ++choice)
      expected.answers.push_back(Sampled(spec, choice));
  }
  for (Answer& answer : expected.answers) ApplyStops(spec, &answer);
  expected.prompt_logprobs = PromptLogprobs(spec);
  return expected;
}

}  // namespace baton::simulation
