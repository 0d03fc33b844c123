#include "common/chat/reasoning.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/chat/markers.h"

namespace baton::chat {
namespace {

// What stands before a message of Harmony, such as "<|start|>assistant<|channel|>final".
constexpr size_t kMaxHarmonyHeaderBytes = 1024;
constexpr absl::string_view kStartMark = "<|start|>";
constexpr absl::string_view kChannelMark = "<|channel|>";
constexpr absl::string_view kMessageMark = "<|message|>";
constexpr absl::string_view kEndMark = "<|end|>";
constexpr absl::string_view kRecipient = " to=functions.";

struct Marks {
  absl::string_view open;
  absl::string_view close;
};

Marks MarksOf(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kThinkTags:
      return {"<think>", "</think>"};
    case ReasoningFormat::kSeedTags:
      return {"<seed:think>", "</seed:think>"};
    case ReasoningFormat::kMistral:
      return {"[THINK]", "[/THINK]"};
    case ReasoningFormat::kGemma4:
      return {"<|channel>thought", "<channel|>"};
    case ReasoningFormat::kHarmony:
      return {"<|channel|>analysis<|message|>", kEndMark};
    case ReasoningFormat::kNone:
      break;
  }
  return {};
}

bool BeginsHeader(absl::string_view text) {
  return absl::StartsWith(text, kChannelMark) || absl::StartsWith(text, kStartMark);
}

bool MayBeginHeader(absl::string_view text) {
  return BeginsHeader(text) || IsProperPrefix(text, kChannelMark) ||
         IsProperPrefix(text, kStartMark);
}

bool EndsWithMark(absl::string_view mark, absl::string_view prompt,
                  absl::Span<const ByteRange> from_request) {
  prompt = absl::StripTrailingAsciiWhitespace(prompt);
  return !mark.empty() && absl::EndsWith(prompt, mark) &&
         !Overlaps(from_request, prompt.size() - mark.size(), prompt.size());
}

// The channel that a header of Harmony names.
absl::string_view ChannelIn(absl::string_view header) {
  const size_t mark = header.find(kChannelMark);
  if (mark == absl::string_view::npos) return "";
  const absl::string_view name =
      absl::StripLeadingAsciiWhitespace(header.substr(mark + kChannelMark.size()));
  return name.substr(0, name.find_first_of(" \t\r\n<"));
}

// The function to which a header of Harmony addresses its message; empty if there is none.
absl::string_view FunctionIn(absl::string_view header) {
  const size_t at = header.find(kRecipient);
  if (at == absl::string_view::npos) return "";
  const absl::string_view name = header.substr(at + kRecipient.size());
  return name.substr(0, name.find_first_of(" \t\r\n<"));
}

}  // namespace

ReasoningFormat DetectReasoningFormat(absl::string_view source) {
  const auto has = [&](absl::string_view text) { return absl::StrContains(source, text); };
  if (has(kChannelMark) && has(kMessageMark)) return ReasoningFormat::kHarmony;
  if (has("<|channel>") && has("<channel|>")) return ReasoningFormat::kGemma4;
  if (has("[THINK]") && has("[/THINK]")) return ReasoningFormat::kMistral;
  if (has("<seed:think>")) return ReasoningFormat::kSeedTags;
  // Some templates have only the mark at which they cut the reasoning off an earlier answer.
  if (has("</think>")) return ReasoningFormat::kThinkTags;
  return ReasoningFormat::kNone;
}

absl::Span<const absl::string_view> ReasoningMarkers(ReasoningFormat format) {
  static constexpr absl::string_view kThink[] = {"<think>", "</think>"};
  static constexpr absl::string_view kSeed[] = {"<seed:think>", "</seed:think>"};
  static constexpr absl::string_view kMistral[] = {"[THINK]", "[/THINK]"};
  static constexpr absl::string_view kGemma[] = {"<|channel>", "<channel|>"};
  static constexpr absl::string_view kHarmony[] = {kStartMark, kChannelMark, kMessageMark,
                                                   kEndMark};
  switch (format) {
    case ReasoningFormat::kThinkTags:
      return kThink;
    case ReasoningFormat::kSeedTags:
      return kSeed;
    case ReasoningFormat::kMistral:
      return kMistral;
    case ReasoningFormat::kGemma4:
      return kGemma;
    case ReasoningFormat::kHarmony:
      return kHarmony;
    case ReasoningFormat::kNone:
      break;
  }
  return {};
}

bool EndsInReasoning(ReasoningFormat format, absl::string_view prompt,
                     absl::Span<const ByteRange> from_request) {
  return EndsWithMark(MarksOf(format).open, prompt, from_request);
}

bool EndsAfterReasoning(ReasoningFormat format, absl::string_view prompt,
                        absl::Span<const ByteRange> from_request) {
  return EndsWithMark(MarksOf(format).close, prompt, from_request);
}

ReasoningTexts ReasoningTextsOf(ReasoningFormat format, bool calls) {
  BATON_CHECK(format != ReasoningFormat::kNone) << "the caller checks the format";
  const Marks marks = MarksOf(format);
  if (format != ReasoningFormat::kHarmony) return {marks.open, marks.close};
  // The next message says its channel: that of calls is a part of them.
  return {marks.open, calls ? "<|end|><|start|>assistant"
                            : "<|end|><|start|>assistant<|channel|>final<|message|>"};
}

ReasoningParser::ReasoningParser(ReasoningFormat format, bool starts_inside, bool keeps_calls)
    : format_(format),
      keeps_calls_(keeps_calls),
      state_(starts_inside ? State::kOpened : State::kStart) {
  BATON_CHECK(format != ReasoningFormat::kNone) << "the caller checks the format";
  if (format == ReasoningFormat::kHarmony) {
    state_ = starts_inside ? State::kReasoning : State::kHeader;
  }
}

ReasoningParser::Delta ReasoningParser::Append(absl::string_view text) {
  Delta delta;
  absl::StrAppend(&held_, text);
  while (Step(&delta)) {
  }
  return delta;
}

ReasoningParser::Delta ReasoningParser::Finish() {
  Delta delta;
  switch (state_) {
    case State::kReasoning:
      AddReasoning(held_, &delta);
      break;
    case State::kOpened:  // the beginning of the mark that the prompt has already
      AddReasoning(held_, &delta);
      break;
    case State::kAfter:  // white space
      break;
    case State::kHeader:
      if (!BeginsHeader(held_)) AddContent(held_, &delta);
      break;
    case State::kStart:
    case State::kMessage:
    case State::kContent:
      AddContent(held_, &delta);
      break;
  }
  held_.clear();
  state_ = State::kContent;
  return delta;
}

bool ReasoningParser::Step(Delta* delta) {
  switch (state_) {
    case State::kStart:
    case State::kOpened:
      return StepStart(delta);
    case State::kReasoning:
      return StepReasoning(MarksOf(format_).close, delta);
    case State::kAfter:
      return StepAfter();
    case State::kHeader:
      return StepHeader(delta);
    case State::kMessage:
      return StepMessage(delta);
    case State::kContent:
      AddContent(std::exchange(held_, ""), delta);
      return false;
  }
  return false;
}

// Looks for the mark at the beginning. Some models write it though the prompt has it.
bool ReasoningParser::StepStart(Delta*) {
  const absl::string_view open = MarksOf(format_).open;
  const absl::string_view rest =
      absl::StripLeadingAsciiWhitespace(absl::string_view(held_).substr(blank_));
  blank_ = held_.size() - rest.size();
  if (IsProperPrefix(rest, open)) return false;
  if (absl::StartsWith(rest, open)) {
    held_.erase(0, blank_ + open.size());
    state_ = State::kReasoning;
  } else {
    state_ = state_ == State::kOpened ? State::kReasoning : State::kContent;
  }
  return true;
}

bool ReasoningParser::StepReasoning(absl::string_view end, Delta* delta) {
  const size_t at = held_.find(end.data(), 0, end.size());
  const bool found = at != std::string::npos;
  const size_t size = found ? at : held_.size() - HeldBytes(held_, end);
  AddReasoning(absl::string_view(held_).substr(0, size), delta);
  held_.erase(0, found ? size + end.size() : size);
  if (!found) return false;
  first_header_ = false;
  space_.clear();
  state_ = format_ == ReasoningFormat::kHarmony ? State::kHeader : State::kAfter;
  return true;
}

bool ReasoningParser::StepAfter() {
  held_.erase(0, held_.size() - absl::StripLeadingAsciiWhitespace(held_).size());
  if (held_.empty()) return false;
  state_ = State::kContent;
  return true;
}

// The prompt may have begun the first header.
bool ReasoningParser::BeginsAnswer(absl::string_view text) const {
  return MayBeginHeader(text) ||
         (keeps_calls_ && (absl::StartsWith(text, kRecipient) || IsProperPrefix(text, kRecipient)));
}

// Looks for the end of a message's header. A text that has no header is content.
bool ReasoningParser::StepHeader(Delta* delta) {
  const size_t end = held_.find(kMessageMark.data(), 0, kMessageMark.size());
  const bool found = end != std::string::npos;
  const size_t size = found ? end : held_.size() - std::min(held_.size(), kMessageMark.size() - 1);
  if ((first_header_ && !BeginsAnswer(held_)) || size > kMaxHarmonyHeaderBytes) {
    state_ = State::kContent;
    return true;
  }
  if (!found) return false;
  const absl::string_view header = absl::string_view(held_).substr(0, end);
  const std::string function(keeps_calls_ ? FunctionIn(header) : "");
  const bool is_reasoning = function.empty() && ChannelIn(header) == "analysis";
  held_.erase(0, end + kMessageMark.size());
  first_header_ = false;
  if (is_reasoning) {
    if (has_reasoning_) space_ = "\n";
    state_ = State::kReasoning;
  } else {
    separates_text_ = has_content_;
    state_ = State::kMessage;
    if (!function.empty()) {
      AddContent(absl::StrCat("<|channel|>commentary", kRecipient, function, kMessageMark), delta);
    }
  }
  return true;
}

bool ReasoningParser::StepMessage(Delta* delta) {
  const size_t at = held_.find(kEndMark.data(), 0, kEndMark.size());
  const bool found = at != std::string::npos;
  const size_t size = found ? at : held_.size() - HeldBytes(held_, kEndMark);
  AddContent(absl::string_view(held_).substr(0, size), delta);
  held_.erase(0, found ? size + kEndMark.size() : size);
  if (!found) return false;
  delta->ends_message = true;
  state_ = State::kHeader;
  return true;
}

// Keeps white space back, which is dropped where the reasoning begins and ends.
void ReasoningParser::AddReasoning(absl::string_view text, Delta* delta) {
  if (!has_reasoning_) text = absl::StripLeadingAsciiWhitespace(text);
  const absl::string_view kept = absl::StripTrailingAsciiWhitespace(text);
  if (!kept.empty()) {
    absl::StrAppend(&delta->reasoning, std::exchange(space_, ""), kept);
    has_reasoning_ = true;
  }
  absl::StrAppend(&space_, text.substr(kept.size()));
}

void ReasoningParser::AddContent(absl::string_view text, Delta* delta) {
  if (text.empty()) return;
  absl::StrAppend(&delta->content, std::exchange(separates_text_, false) ? "\n" : "", text);
  has_content_ = true;
}

}  // namespace baton::chat
