#include "decode_worker/drafts/drafter.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton::decode_worker {

namespace {

// If more new tokens than this come at once, they are a prompt's, and only the last ones are
// matched: what a prompt says of itself is no record of answers.
constexpr size_t kMostLearnedAtOnce = 64;
// A match of so many tokens is resumed when it ends.
constexpr int kResumedLength = 8;
constexpr int kMostDraftTokens = 256;

}  // namespace

Drafter::Drafter(const DrafterOptions& options, AcceptanceTable* table, AnswerMemory* memory,
                 std::string scope)
    : options_(options),
      table_(table),
      memory_(options.mode == DrafterOptions::Mode::kSuffix ? memory : nullptr),
      scope_(std::move(scope)),
      text_(options.window_tokens) {
  BATON_CHECK(options.ngram_min >= 1 && options.ngram_min <= options.ngram_max &&
              options.ngram_max <= SuffixIndex::kLongestMatch)
      << options.ngram_min << " to " << options.ngram_max;
}

void Drafter::Restart() {
  text_ = SuffixIndex(options_.window_tokens);
  observed_ = 0;
  complete_ = false;
}

void Drafter::RefreshAnswers() {
  if (memory_ == nullptr || answers_as_of_ == memory_->changes()) return;
  answers_as_of_ = memory_->changes();
  const AnswerMemory::Answers now = memory_->Find(scope_);
  if (now.id != answers_.id) {
    const auto forgotten = [](const Candidate& candidate) { return candidate.in_memory; };
    search_ |= std::erase_if(candidates_, forgotten) > 0;
    if (resumed_.has_value() && resumed_->in_memory) resumed_.reset();
  }
  answers_ = now;
}

void Drafter::Observe(absl::Span<const int32_t> tokens) {
  RefreshAnswers();
  if (tokens.size() < observed_) Restart();
  if (complete_ && tokens.size() - observed_ <= kMostLearnedAtOnce) {
    while (observed_ < tokens.size()) {
      const int32_t token = tokens[observed_++];
      Take(token, tokens.first(observed_));
    }
    return;
  }
  if (const size_t window = static_cast<size_t>(options_.window_tokens);
      tokens.size() - observed_ > window) {
    observed_ = tokens.size() - window;
  }
  const size_t end = std::min(tokens.size(), observed_ + kMostIndexedAtOnce);
  while (observed_ < end) text_.Append(tokens[observed_++]);
  complete_ = end == tokens.size();
  resumed_.reset();
  candidates_.clear();
  of_match_ = of_resumed_ = {};
  search_ = true;
  if (complete_) {
    Search(tokens);
    Predict();
  }
}

void Drafter::Take(int32_t token, absl::Span<const int32_t> tokens) {
  Learn(of_match_, token);
  Learn(of_resumed_, token);
  // The text does not have the token yet, so whatever agrees has a token behind it afterwards.
  if (resumed_.has_value()) {
    if (TokenOf(*resumed_, 0, {}) == token) {
      ++resumed_->next;
      ++resumed_->length;
    } else {
      resumed_.reset();
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    Candidate candidate = candidates_[i];
    const bool goes_on = TokenOf(candidate, 0, {}) == token;
    ++candidate.next;
    if (goes_on) {
      ++candidate.length;
      candidates_[kept++] = candidate;
    } else if (i == 0) {
      search_ = true;
      if (candidate.length >= kResumedLength && options_.mode == DrafterOptions::Mode::kSuffix) {
        resumed_ = {.next = candidate.next, .length = 0, .in_memory = candidate.in_memory};
      }
    }
  }
  candidates_.resize(kept);
  text_.Append(token);
  // The end of an answer in memory ends its matches, too.
  search_ |= candidates_.empty() || TokenOf(candidates_.front(), 0, {}) < 0;
  // What is the largest number of tokens that n-grams may have is no match's length: there may be a
  // later one.
  if (search_ || options_.mode == DrafterOptions::Mode::kNgram) Search(tokens);
  Predict();
}

void Drafter::Search(absl::Span<const int32_t> tokens) {
  const absl::Span<const int32_t> suffix =
      tokens.last(std::min(tokens.size(), static_cast<size_t>(SuffixIndex::kLongestMatch)));
  const bool ngram = options_.mode == DrafterOptions::Mode::kNgram;
  const int most = ngram ? 1 : SuffixIndex::kMostMatches;
  candidates_.clear();
  const auto add = [&](const SuffixIndex& text, bool in_memory) {
    const SuffixIndex::Matches matches =
        text.Find(suffix, ngram ? options_.ngram_max : SuffixIndex::kLongestMatch, most);
    steps_ += matches.steps;
    for (const SuffixIndex::Match& match : matches) {
      if (ngram && match.length < options_.ngram_min) continue;
      candidates_.push_back({.next = match.next, .length = match.length, .in_memory = in_memory});
    }
  };
  add(text_, false);
  if (answers_.text != nullptr) {
    add(*answers_.text, true);
    // The sequence's own text is the later one.
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.length > b.length; });
  }
  search_ = false;
}

int32_t Drafter::TokenOf(const Candidate& candidate, int ahead,
                         absl::Span<const int32_t> drafted) const {
  const uint64_t position = candidate.next + static_cast<uint64_t>(ahead);
  const SuffixIndex* const text = candidate.in_memory ? answers_.text : &text_;
  if (text == nullptr || position < text->begin()) return SuffixIndex::kSeparator;
  if (position < text->end()) return text->at(position);
  const uint64_t copied = position - text->end();
  return !candidate.in_memory && copied < drafted.size() ? drafted[copied]
                                                         : SuffixIndex::kSeparator;
}

int Drafter::CellOfMatch(int32_t token, absl::Span<const int32_t> drafted,
                         uint32_t* agreeing) const {
  const int ahead = static_cast<int>(drafted.size());
  const int longest = candidates_.front().length + ahead;
  int similar = 0;
  int same = 0;
  for (size_t i = 1; i < candidates_.size(); ++i) {
    if ((*agreeing >> i & 1) == 0) continue;
    const int32_t other = TokenOf(candidates_[i], ahead, drafted);
    if (other != token) *agreeing &= ~(1u << i);
    if (other < 0 || 2 * (candidates_[i].length + ahead) < longest) continue;
    ++similar;
    same += other == token;
  }
  const Agreement agreement = similar == 0          ? Agreement::kAlone
                              : same == similar     ? Agreement::kUnanimous
                              : 2 * same >= similar ? Agreement::kMajority
                                                    : Agreement::kMinority;
  return AcceptanceCell(longest, agreement);
}

int Drafter::CellOfResumed(int ahead) const {
  return AcceptanceCell(resumed_->length + ahead, Agreement::kResumed);
}

float Drafter::Probability(const Prediction& prediction) const {
  return prediction.token < 0 ? 0 : acceptance_.Probability(prediction.cell, *table_);
}

void Drafter::Predict() {
  of_match_ = of_resumed_ = {};
  if (!candidates_.empty()) {
    of_match_.token = TokenOf(candidates_.front(), 0, {});
    uint32_t agreeing = ~0u;
    if (of_match_.token >= 0) of_match_.cell = CellOfMatch(of_match_.token, {}, &agreeing);
  }
  if (resumed_.has_value()) {
    of_resumed_ = {.token = TokenOf(*resumed_, 0, {}), .cell = CellOfResumed(0)};
  }
}

void Drafter::Learn(const Prediction& prediction, int32_t drawn) {
  if (prediction.token < 0) return;
  table_->Record(prediction.cell, prediction.token == drawn);
  acceptance_.Record(prediction.cell, prediction.token == drawn);
}

Draft Drafter::Propose(int most) {
  RefreshAnswers();
  Draft draft;
  if (!complete_) return draft;
  const bool resumes = resumed_.has_value() && Probability(of_resumed_) > Probability(of_match_);
  if (!resumes && candidates_.empty()) return draft;
  const Candidate& source = resumes ? *resumed_ : candidates_.front();
  most = std::min(most, kMostDraftTokens);
  uint32_t agreeing = ~0u;
  float likelihood = 1;
  for (int ahead = 0; ahead < most; ++ahead) {
    const int32_t token = TokenOf(source, ahead, draft.tokens);
    if (token < 0) break;
    const int cell = resumes ? CellOfResumed(ahead) : CellOfMatch(token, draft.tokens, &agreeing);
    likelihood *= Probability({.token = token, .cell = cell});
    draft.tokens.push_back(token);
    draft.likelihoods.push_back(likelihood);
  }
  return draft;
}

}  // namespace baton::decode_worker
