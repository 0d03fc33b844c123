#include "decode_worker/beam_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace baton::decode_worker {

// One after the other: a long answer is a chain too long to recurse along.
BeamSearch::Node::~Node() {
  std::shared_ptr<Node> next = std::move(previous);
  while (next != nullptr && next.use_count() == 1) next = std::exchange(next->previous, nullptr);
}

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
    const model::SampledToken* token;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < beams_.size(); ++i) {
    for (const model::SampledToken& next : proposed[i]) {
      const double logprob = beams_[i].logprob + static_cast<double>(next.score);
      if (!std::isfinite(logprob)) continue;  // a token that is masked
      const bool stops = options_.stop_token_ids.contains(next.token_id);
      if (stops && beams_[i].length < options_.min_tokens) continue;
      candidates.push_back({logprob, static_cast<int>(i), &next});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(b.logprob, a.parent, a.token->token_id) <
           std::tie(a.logprob, b.parent, b.token->token_id);
  });
  std::vector<Step> steps;
  std::vector<Beam> next;
  for (const Candidate& candidate : candidates) {
    const Beam& parent = beams_[static_cast<size_t>(candidate.parent)];
    const bool stops = options_.stop_token_ids.contains(candidate.token->token_id);
    if (!stops && static_cast<int>(next.size()) == options_.width) continue;
    Beam beam = {std::make_shared<Node>(*candidate.token, parent.last), parent.length + 1,
                 candidate.logprob};
    if (stops) {
      Complete(beam, /*stopped=*/true);
    } else {
      next.push_back(std::move(beam));
      steps.push_back({candidate.parent, candidate.token->token_id});
    }
  }
  started_ = true;
  beams_ = std::move(next);
  if (beams_.empty()) return {};
  if (beams_[0].length == options_.max_tokens) {
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
  const int now = beams_[0].length + 1;
  const double best =
      std::max(Score(beams_[0].logprob, now), Score(beams_[0].logprob, options_.max_tokens));
  return answers_[static_cast<size_t>(options_.n) - 1].score >= best;
}

void BeamSearch::Complete(const Beam& beam, bool stopped) {
  Completed answer = {beam, Score(beam.logprob, beam.length), stopped};
  // Behind those of equal score: the order does not depend on how many are kept.
  const auto at =
      std::upper_bound(answers_.begin(), answers_.end(), answer,
                       [](const Completed& a, const Completed& b) { return a.score > b.score; });
  answers_.insert(at, std::move(answer));
  if (static_cast<int>(answers_.size()) > options_.n) answers_.pop_back();
}

std::vector<BeamSearch::Answer> BeamSearch::Best() const {
  std::vector<Answer> best;
  for (const Completed& completed : answers_) {
    Answer& answer = best.emplace_back();
    answer.score = completed.score;
    answer.stopped = completed.stopped;
    for (const Node* node = completed.beam.last.get(); node != nullptr;
         node = node->previous.get()) {
      answer.tokens.push_back(node->token);
    }
    std::reverse(answer.tokens.begin(), answer.tokens.end());
    for (const model::SampledToken& token : answer.tokens) {
      answer.token_ids.push_back(token.token_id);
    }
  }
  return best;
}

}  // namespace baton::decode_worker
