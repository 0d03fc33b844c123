#include "tests/simulation/draw_request.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/simulation/hash_engine.h"
#include "tests/simulation/vocabulary.h"

namespace baton::simulation {
namespace {

void DrawTimes(Random& random, const RequestDraw& draw, RequestSpec* spec) {
  spec->start = draw.earliest + random.Time(0, draw.spread);
  const bool ample = draw.calm || random.Chance(0.7);
  spec->deadline = spec->start + (ample ? kAmpleTime : random.Time(10'000, 20 * kSecond));
  spec->reads = ample || random.Chance(0.9);
  spec->asks_again = random.Chance(0.7);
  if (!random.Chance(0.2)) return;
  spec->cancel_at = spec->start + (random.Chance(0.7) ? random.Time(0, 200 * kMillisecond)
                                                      : random.Time(0, 3 * kSecond));
}

// Few beginnings, so that prefixes repeat.
void DrawPrompt(Random& random, const RequestDraw& draw, RequestSpec* spec) {
  const int family = random.Below(draw.families) * 100;
  const int size = random.Between(1, 70);
  const int own_from = random.Between(0, 70);
  spec->prompt_as_text = random.Chance(0.2);
  for (int t = 0; t < size; ++t) {
    const int token = t < own_from ? family + t : random.Below(3);
    spec->prompt.push_back(spec->prompt_as_text ? ' ' + token % 90 : token);
  }
}

void DrawStops(Random& random, RequestSpec* spec) {
  spec->ignore_eos = random.Chance(0.5);
  if (random.Chance(0.3)) {
    for (int s = 0; s < 40; ++s) spec->stop_token_ids.push_back(random.Below(kVocab));
  }
  if (spec->beam_width == 0 && random.Chance(0.3)) {
    for (int s = random.Between(1, 3); s > 0; --s) {
      std::string& stop = spec->stops.emplace_back();
      for (int i = random.Between(2, 6); i > 0; --i) {
        stop += kLetters[random.Below(static_cast<int>(std::size(kLetters)))];
      }
    }
  }
  // So long a request is not prepared where it arrives, but by the router's pool.
  if (spec->beam_width == 0 && random.Chance(0.1)) {
    for (const char c : {'x', 'y', 'z'}) spec->stops.emplace_back(1000, c);
  }
  if (!spec->stop_token_ids.empty() || !spec->stops.empty()) {
    spec->min_tokens = random.Chance(0.5) ? random.Between(0, spec->max_tokens) : 0;
  }
}

}  // namespace

RequestSpec DrawRequest(Random& random, const RequestDraw& draw) {
  RequestSpec spec;
  DrawTimes(random, draw, &spec);
  DrawPrompt(random, draw, &spec);
  spec.sampling.temperature = random.Chance(0.5) ? 0.0f : 1.0f;
  spec.sampling.seed = random.Next();
  if (random.Chance(0.2)) spec.sampling.repetition_penalty = 1.5f;
  if (random.Chance(0.1)) spec.sampling.logprobs = random.Between(0, 3);
  spec.n = random.Chance(0.2) ? random.Between(2, 3) : 1;
  // Prefill workers, which answer requests of one token, take no Decode calls here.
  spec.max_tokens = random.Between(2, 30);
  if (random.Chance(0.1)) {
    spec.beam_width = random.Between(2, 3);
    spec.n = random.Between(1, spec.beam_width);
    spec.length_penalty = static_cast<float>(random.Between(0, 2));
    spec.sampling.logprobs.reset();
  }
  DrawStops(random, &spec);
  if (random.Chance(0.1)) spec.prompt_logprobs = random.Between(0, 2);
  spec.return_token_ids = random.Chance(0.9);
  spec.priority = static_cast<v1::Priority>(random.Between(0, 3));
  spec.tenant = absl::StrCat("tenant-", random.Below(3));
  if (random.Chance(0.1)) spec.cache_salt = "salt";
  return spec;
}

}  // namespace baton::simulation
