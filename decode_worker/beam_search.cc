#include "decode_worker/beam_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace baton::decode_worker {

void BeamSearch::Restart() {
  started_ = false;
  beams_.assign(1, Beam());
  answers_.clear();
}

double BeamSearch::Score(double logprob, int length) const {
  return logprob / std::pow(static_cast<double>(length), options_.length_penalty);
}

std::vector<BeamSearch::Step> BeamSearch::Advance(
    const std::vector<std::vector<model::SampledToken>>& proposed) {
  BATON_CHECK_EQ(proposed.size(), beams_.size());
  struct Candidate {
    double logprob;
    int parent;
    int32_t token_id;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < beams_.size(); ++i) {
    for (const model::SampledToken& next : proposed[i]) {
      const double logprob = beams_[i].logprob + static_cast<double>(next.score);
      if (!std::isfinite(logprob)) continue;  // a token that is masked
      const bool stops = options_.stop_token_ids.contains(next.token_id);
      if (stops && static_cast<int>(beams_[i].token_ids.size()) < options_.min_tokens) continue;
      candidates.push_back({logprob, static_cast<int>(i), next.token_id});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(b.logprob, a.parent, a.token_id) < std::tie(a.logprob, b.parent, b.token_id);
  });
  std::vector<Step> steps;
  std::vector<Beam> next;
  for (const Candidate& candidate : candidates) {
    Beam beam = beams_[static_cast<size_t>(candidate.parent)];
    beam.token_ids.push_back(candidate.token_id);
    beam.logprob = candidate.logprob;
    if (options_.stop_token_ids.contains(candidate.token_id)) {
      Complete(beam, /*stopped=*/true);
    } else if (static_cast<int>(next.size()) < options_.width) {
      next.push_back(std::move(beam));
      steps.push_back({candidate.parent, candidate.token_id});
    }
  }
  started_ = true;
  beams_ = std::move(next);
  if (beams_.empty()) return {};
  if (static_cast<int>(beams_[0].token_ids.size()) == options_.max_tokens) {
    for (const Beam& beam : beams_) Complete(beam, /*stopped=*/false);
    return {};
  }
  if (CannotImprove()) return {};
  return steps;
}

// Log probabilities only fall: the best that a beam can still reach is what it has, over the length
// that flatters it most.
bool BeamSearch::CannotImprove() const {
  if (static_cast<int>(answers_.size()) < options_.n) return false;
  const int now = static_cast<int>(beams_[0].token_ids.size()) + 1;
  const double best =
      std::max(Score(beams_[0].logprob, now), Score(beams_[0].logprob, options_.max_tokens));
  return answers_[static_cast<size_t>(options_.n) - 1].score >= best;
}

void BeamSearch::Complete(const Beam& beam, bool stopped) {
  Answer answer{beam.token_ids, Score(beam.logprob, static_cast<int>(beam.token_ids.size())),
                stopped};
  // Behind those of equal score: the order does not depend on how many are kept.
  const auto at =
      std::upper_bound(answers_.begin(), answers_.end(), answer,
                       [](const Answer& a, const Answer& b) { return a.score > b.score; });
  answers_.insert(at, std::move(answer));
  if (static_cast<int>(answers_.size()) > options_.n) answers_.pop_back();
}

std::vector<BeamSearch::Answer> BeamSearch::Best() const { return answers_; }

}  // namespace baton::decode_worker
