#include "common/grammar/reasoning_phase.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace baton::grammar {
namespace {

using ReasoningPlace = ReasoningPhase::State::Place;

// Of one phase; each has a bit for each token. Marks that are special tokens need two or three.
constexpr int kMostMasks = 32;

absl::Status CheckMark(absl::string_view name, const std::string& text) {
  const std::string field = absl::StrCat("structured_output.reasoning.", name);
  if (text.size() > kMaxReasoningTextBytes) {
    return InvalidField("SCHEMA_TOO_COMPLEX", field,
                        absl::StrCat("a text of ", text.size(), " bytes given, at most ",
                                     kMaxReasoningTextBytes, " expected"));
  }
  if (IsUtf8(text) && (!text.empty() || name == "begin")) return absl::OkStatus();
  return InvalidField("SCHEMA_INVALID", field, "a text in UTF-8, not empty, expected");
}

bool IsSpace(absl::string_view text) {
  return text.find_first_not_of(" \t\r\n") == absl::string_view::npos;
}

}  // namespace

absl::Status CheckReasoning(const GrammarSpec::Reasoning& reasoning) {
  BATON_RETURN_IF_ERROR(CheckMark("begin", reasoning.begin));
  return CheckMark("end", reasoning.end);
}

ReasoningPhase::ReasoningPhase(GrammarSpec::Reasoning reasoning,
                               const ReasoningVocabulary& vocabulary)
    : reasoning_(std::move(reasoning)), vocabulary_(vocabulary) {
  const std::string& end = reasoning_.end;
  fallback_.assign(end.size() + 1, 0);
  for (size_t i = 1; i < end.size(); ++i) fallback_[i + 1] = Next(fallback_[i], end[i]);
  for (size_t i = 0; i < vocabulary.texts.size(); ++i) {
    const std::string& text = vocabulary.texts[i];
    const size_t at = vocabulary.special[i] && !text.empty() ? end.find(text) : std::string::npos;
    if (at != std::string::npos) decided_ = std::min(decided_, at + text.size());
  }
  masks_.resize(reasoning_.begin.size() + end.size() + kMaxWhitespace + 1);
}

ReasoningPhase::State ReasoningPhase::Start() const {
  return {reasoning_.begin.empty() ? ReasoningPlace::kReasoning : ReasoningPlace::kBegin};
}

size_t ReasoningPhase::Next(size_t matched, char byte) const {
  while (matched > 0 && reasoning_.end[matched] != byte) matched = fallback_[matched];
  return reasoning_.end[matched] == byte ? matched + 1 : 0;
}

std::optional<size_t> ReasoningPhase::AfterReasoning(size_t matched, int32_t token) const {
  const std::string& text = vocabulary_.texts[static_cast<size_t>(token)];
  size_t after = matched;
  for (size_t i = 0; i < text.size(); ++i) {
    after = Next(after, text[i]);
    // What follows the reasoning begins with a token of its own.
    if (after == reasoning_.end.size() && i + 1 < text.size()) return std::nullopt;
  }
  const bool is_foreign = vocabulary_.special[static_cast<size_t>(token)] && after < text.size();
  const bool leaves_end = matched >= decided_ && after != matched + text.size();
  if (text.empty() || is_foreign || leaves_end) return std::nullopt;
  return after;
}

std::optional<ReasoningPhase::State> ReasoningPhase::After(const State& state,
                                                           int32_t token) const {
  const std::string& text = vocabulary_.texts[static_cast<size_t>(token)];
  if (text.empty()) return std::nullopt;
  const size_t matched = state.matched + text.size();
  switch (state.place) {
    case ReasoningPlace::kBegin:
      if (!absl::StartsWith(absl::string_view(reasoning_.begin).substr(state.matched), text)) {
        return std::nullopt;
      }
      if (matched == reasoning_.begin.size()) return State{ReasoningPlace::kReasoning};
      return State{ReasoningPlace::kBegin, matched};
    case ReasoningPlace::kReasoning: {
      const std::optional<size_t> after = AfterReasoning(state.matched, token);
      if (!after) return std::nullopt;
      if (*after == reasoning_.end.size()) return State{ReasoningPlace::kSpace};
      return State{ReasoningPlace::kReasoning, *after};
    }
    case ReasoningPlace::kSpace:
      if (!IsSpace(text) || matched > kMaxWhitespace) return std::nullopt;
      return State{ReasoningPlace::kSpace, matched};
    case ReasoningPlace::kConstrained:
      break;
  }
  return std::nullopt;
}

const std::vector<uint32_t>& ReasoningPhase::Mask(const State& state) {
  size_t index = state.matched;
  if (state.place != ReasoningPlace::kBegin) index += reasoning_.begin.size();
  if (state.place == ReasoningPlace::kSpace) index += reasoning_.end.size();
  std::vector<uint32_t>& mask = masks_.at(index);
  if (!mask.empty()) return mask;
  if (++kept_masks_ > kMostMasks) {
    for (std::vector<uint32_t>& kept : masks_) kept = {};
    kept_masks_ = 1;
  }
  mask.resize((vocabulary_.texts.size() + 31) / 32);
  for (size_t i = 0; i < vocabulary_.texts.size(); ++i) {
    if (After(state, static_cast<int32_t>(i))) mask[i / 32] |= uint32_t{1} << (i % 32);
  }
  return mask;
}

}  // namespace baton::grammar
