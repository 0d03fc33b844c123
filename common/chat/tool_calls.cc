#include "common/chat/tool_calls.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/splitmix64.h"
#include "common/chat/bare_calls.h"
#include "common/chat/json_calls.h"
#include "common/chat/markers.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxRereadBytes = size_t{1} << 20;

// What starts a call.
absl::string_view Opener(ToolCallFormat format) {
  switch (format) {
    case ToolCallFormat::kHermes:
      return "<tool_call>";
    case ToolCallFormat::kMistral:
      return "[TOOL_CALLS]";
    case ToolCallFormat::kDeepSeek:
      return "<｜tool▁call▁begin｜>";
    case ToolCallFormat::kQwenXml:
      return "<function=";
    case ToolCallFormat::kGlm:
      return "<tool_call>";
    case ToolCallFormat::kLfm2:
      return "<|tool_call_start|>";
    case ToolCallFormat::kGemma4:
      return "<|tool_call>";
    case ToolCallFormat::kHarmony:
      return "<|channel|>commentary to=functions.";
    case ToolCallFormat::kLlama3:
    case ToolCallFormat::kUnsupported:
      break;
  }
  return "";
}

// What may stand before, between and after calls besides white space, and is dropped.
absl::Span<const absl::string_view> Separators(ToolCallFormat format) {
  static constexpr absl::string_view kHermes[] = {"</tool_call>"};
  static constexpr absl::string_view kLlama3[] = {";", "<|python_tag|>"};
  static constexpr absl::string_view kDeepSeek[] = {"```", "<｜tool▁calls▁begin｜>",
                                                    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"};
  static constexpr absl::string_view kQwenXml[] = {"<tool_call>", "</tool_call>",
                                                   "<seed:tool_call>", "</seed:tool_call>"};
  static constexpr absl::string_view kHarmony[] = {"<|call|>"};
  switch (format) {
    case ToolCallFormat::kQwenXml:
      return kQwenXml;
    case ToolCallFormat::kHarmony:
      return kHarmony;
    case ToolCallFormat::kHermes:
      return kHermes;
    case ToolCallFormat::kLlama3:
      return kLlama3;
    case ToolCallFormat::kDeepSeek:
      return kDeepSeek;
    default:
      return {};
  }
}

// How the calls behind an opener are read.
std::unique_ptr<CallReader> NewCallReader(ToolCallFormat format, const json::Value* tools) {
  switch (format) {
    case ToolCallFormat::kQwenXml:
    case ToolCallFormat::kGlm:
      return NewXmlCallReader(format, tools);
    case ToolCallFormat::kLfm2:
    case ToolCallFormat::kGemma4:
      return NewLiteralCallReader(format);
    default:
      return NewJsonCallReader(format);
  }
}

bool HasTool(const json::Value& tools, absl::string_view name) {
  return absl::c_any_of(tools.items, [&](const json::Value& tool) {
    const json::Value* const function = tool.Find("function");
    const json::Value* const own = function == nullptr ? nullptr : function->Find("name");
    return own != nullptr && own->scalar.text == name;
  });
}

void AppendText(absl::string_view text, ToolCallParser::Parts* parts) {
  AppendPart({.kind = AnswerPart::Kind::kText, .text = std::string(text)}, parts);
}

}  // namespace

void AppendPart(AnswerPart part, std::vector<AnswerPart>* parts) {
  using enum AnswerPart::Kind;
  const bool has_text = part.kind != kCall && part.kind != kCallEnd;
  if (has_text && part.text.empty()) return;
  if (has_text && !parts->empty() && parts->back().kind == part.kind) {
    parts->back().text += part.text;
  } else {
    parts->push_back(std::move(part));
  }
}

void JoinedAnswer::Add(const AnswerPart& part) {
  switch (part.kind) {
    case AnswerPart::Kind::kReasoning:
      reasoning += part.text;
      break;
    case AnswerPart::Kind::kText:
      text += part.text;
      break;
    case AnswerPart::Kind::kCall:
      calls.push_back({part.id, part.name, "", false});
      break;
    case AnswerPart::Kind::kArguments:
      calls.back().arguments += part.text;
      break;
    case AnswerPart::Kind::kCallEnd:
      calls.back().is_whole = part.is_whole;
      break;
  }
}

absl::Span<const absl::string_view> ToolCallMarkers(ToolCallFormat format) {
  static constexpr absl::string_view kHermes[] = {"<tool_call>", "</tool_call>"};
  static constexpr absl::string_view kLlama3[] = {"<|python_tag|>"};
  static constexpr absl::string_view kMistral[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
  static constexpr absl::string_view kDeepSeek[] = {"<｜tool▁calls▁begin｜>",
                                                    "<｜tool▁call▁begin｜>", kDeepSeekSeparator,
                                                    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"};
  static constexpr absl::string_view kQwenXml[] = {"<tool_call>",      "</tool_call>",
                                                   "<function=",       "</function>",
                                                   "<seed:tool_call>", "</seed:tool_call>"};
  static constexpr absl::string_view kGlm[] = {"<tool_call>", "</tool_call>", "<arg_key>",
                                               "</arg_key>",  "<arg_value>",  "</arg_value>"};
  static constexpr absl::string_view kLfm2[] = {"<|tool_call_start|>", "<|tool_call_end|>"};
  static constexpr absl::string_view kGemma4[] = {"<|tool_call>", "<tool_call|>", "<|\"|>"};
  static constexpr absl::string_view kHarmony[] = {"<|start|>",   "<|channel|>", "<|constrain|>",
                                                   "<|message|>", "<|call|>",    "<|end|>"};
  switch (format) {
    case ToolCallFormat::kHermes:
      return kHermes;
    case ToolCallFormat::kLlama3:
      return kLlama3;
    case ToolCallFormat::kMistral:
      return kMistral;
    case ToolCallFormat::kDeepSeek:
      return kDeepSeek;
    case ToolCallFormat::kQwenXml:
      return kQwenXml;
    case ToolCallFormat::kGlm:
      return kGlm;
    case ToolCallFormat::kLfm2:
      return kLfm2;
    case ToolCallFormat::kGemma4:
      return kGemma4;
    case ToolCallFormat::kHarmony:
      return kHarmony;
    case ToolCallFormat::kUnsupported:
      break;
  }
  return {};
}

ToolCallFormat DetectToolCallFormat(absl::string_view source) {
  const auto has = [&](absl::string_view text) { return absl::StrContains(source, text); };
  if (has("[TOOL_CALLS]")) return ToolCallFormat::kMistral;
  if (has(Opener(ToolCallFormat::kDeepSeek)) && has(kDeepSeekSeparator)) {
    return ToolCallFormat::kDeepSeek;
  }
  if (has("<|channel|>") && has("<|message|>") && has("functions.")) {
    return ToolCallFormat::kHarmony;
  }
  if (has("<|tool_call>") && has("call:")) return ToolCallFormat::kGemma4;
  if (has("<|tool_call_start|>") || has("<|tool_list_start|>")) return ToolCallFormat::kLfm2;
  if (has("<function=") && has("<parameter=")) return ToolCallFormat::kQwenXml;
  if (has("<tool_call>") && has("<arg_key>")) return ToolCallFormat::kGlm;
  const bool has_json = has("\"name\": ") || has("\\\"name\\\": ");
  if (has("<tool_call>") && has_json && !has("<function=") && !has("<arg_key>")) {
    return ToolCallFormat::kHermes;
  }
  if (has("\"parameters\": ") && has("\"name\": ") && has("<|start_header_id|>") &&
      !has("<function=")) {
    return ToolCallFormat::kLlama3;
  }
  return ToolCallFormat::kUnsupported;
}

ToolCallParser::ToolCallParser(ToolCallFormat format, uint64_t id_seed,
                               std::shared_ptr<const json::Value> tools, bool calls_begin)
    : format_(format),
      tools_(std::move(tools)),
      id_state_(id_seed),
      state_(format == ToolCallFormat::kLlama3 ? State::kStart
             : calls_begin                     ? State::kFirst
                                               : State::kText) {
  BATON_CHECK(format != ToolCallFormat::kUnsupported) << "the caller checks the format";
  searches_.push_back({Opener(format), 0});
  for (const absl::string_view separator : Separators(format)) {
    if (separator != "```") searches_.push_back({separator, 0});  // also ends code in a text
  }
}

void ToolCallParser::Drop(size_t bytes) {
  begin_ += bytes;
  space_ -= std::min(space_, bytes);
  for (Search& search : searches_) search.from -= std::min(search.from, bytes);
  if (begin_ < held_.size() - begin_) return;
  // At most as many bytes move as have been dropped since the last time.
  held_.erase(0, begin_);
  begin_ = 0;
}

absl::string_view ToolCallParser::HeldBehindSpace() {
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(Held().substr(space_));
  space_ = Held().size() - rest.size();
  return rest;
}

ToolCallParser::Parts ToolCallParser::Append(absl::string_view text) {
  Parts parts;
  absl::StrAppend(&held_, text);
  while (Step(&parts)) {
  }
  return parts;
}

ToolCallParser::Parts ToolCallParser::EndMessage() {
  Parts parts;
  if (state_ != State::kCall) return parts;
  FinishCall(&parts);
  Drop(Held().size());
  state_ = has_call_ ? State::kBetween : State::kText;
  return parts;
}

ToolCallParser::Parts ToolCallParser::Finish() {
  Parts parts;
  if (state_ == State::kStart || (state_ == State::kBetween && DroppedOpening())) {
    AppendText(absl::StrCat(dropped_, Held()), &parts);
  } else if (state_ == State::kCall) {
    FinishCall(&parts);
  } else if (state_ != State::kBetween || !MayBeDropped()) {
    AppendText(Held(), &parts);
  }
  Drop(Held().size());
  state_ = State::kPlain;
  return parts;
}

void ToolCallParser::FinishCall(Parts* parts) {
  if (reader_->Finish(Held().substr(read_), *this)) {
    Release(parts);
  } else if (is_open_ && released_) {
    EndCall(reader_->has_arguments());
    Release(parts);
  } else if (!has_call_) {
    AppendText(absl::StrCat(opener_, Held()), parts);
  } else if (reader_->in_call()) {
    AppendText(HeldInList(), parts);
  }
}

// True if what follows a call is white space, and maybe the beginning of a mark that is dropped.
bool ToolCallParser::MayBeDropped() const {
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(Held());
  return rest.empty() || absl::c_any_of(Separators(format_), [&](absl::string_view separator) {
           return IsProperPrefix(rest, separator);
         });
}

bool ToolCallParser::Step(Parts* parts) {
  switch (state_) {
    case State::kStart:
      return StepStart(parts);
    case State::kFirst:
      return StepFirst();
    case State::kText:
      return StepText(parts);
    case State::kCall:
      return StepCall(parts);
    case State::kBetween:
      return StepBetween(parts);
    case State::kPlain:
      AppendText(Held(), parts);
      Drop(Held().size());
      return false;
  }
  return false;
}

// Decides, in Llama's format, whether the answer is a call.
bool ToolCallParser::StepStart(Parts* parts) {
  static constexpr absl::string_view kTag = "<|python_tag|>";
  const absl::string_view rest = HeldBehindSpace();
  if (dropped_.empty() && absl::StartsWith(rest, kTag)) {
    dropped_ = std::string(Held().substr(0, space_ + kTag.size()));
    Drop(dropped_.size());
    return true;
  }
  if (rest.empty() || (dropped_.empty() && IsProperPrefix(rest, kTag))) return false;
  if (rest[0] != '{') {
    AppendText(std::exchange(dropped_, ""), parts);
    state_ = State::kPlain;
    return true;
  }
  EnterCall(Held().substr(0, space_));
  return true;
}

// Decides whether the answer begins with a call, or with what may stand before one.
bool ToolCallParser::StepFirst() {
  const absl::string_view rest = HeldBehindSpace();
  bool may_grow = rest.empty() || IsProperPrefix(rest, Opener(format_));
  bool begins = absl::StartsWith(rest, Opener(format_));
  for (const absl::string_view separator : Separators(format_)) {
    may_grow = may_grow || IsProperPrefix(rest, separator);
    begins = begins || absl::StartsWith(rest, separator);
  }
  if (!begins && may_grow) return false;
  state_ = begins ? State::kText : State::kPlain;
  return true;
}

bool ToolCallParser::StepText(Parts* parts) {
  const absl::string_view held = Held();
  size_t first = absl::string_view::npos;
  size_t kept = 0;
  for (Search& search : searches_) {
    const size_t at = held.find(search.mark, search.from);
    const size_t partial = HeldBytes(held, search.mark);
    search.from = std::min(at, held.size() - partial);
    first = std::min(first, at);
    kept = std::max(kept, partial);
  }
  const bool found = first != absl::string_view::npos;
  const absl::string_view before = held.substr(0, found ? first : held.size() - kept);
  // No mark begins with white space, so that what is known to be white space is before them.
  const absl::string_view behind = absl::StripTrailingAsciiWhitespace(before.substr(space_));
  const size_t text_size = behind.empty() ? 0 : space_ + behind.size();
  AppendText(before.substr(0, text_size), parts);
  if (!found) {
    space_ = before.size();
    Drop(text_size);
    return false;
  }
  dropped_ = std::string(before.substr(text_size));
  Drop(first);
  state_ = State::kBetween;
  return true;
}

void ToolCallParser::EnterCall(absl::string_view opener) {
  opener_ = absl::StrCat(std::exchange(dropped_, ""), opener);
  Drop(opener.size());
  state_ = State::kCall;
  reader_ = NewCallReader(format_, tools_.get());
  read_ = 0;
  pending_.clear();
  has_call_ = false;
  is_open_ = false;
  released_ = false;
}

bool ToolCallParser::Begin(absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  pending_.push_back({.kind = AnswerPart::Kind::kCall, .id = NextId(), .name = std::string(name)});
  is_open_ = true;
  released_ = tools_ == nullptr || HasTool(*tools_, name);
  return true;
}

void ToolCallParser::Write(absl::string_view piece) {
  AppendPart({.kind = AnswerPart::Kind::kArguments, .text = std::string(piece)}, &pending_);
}

void ToolCallParser::EndCall(bool is_whole) {
  pending_.push_back({.kind = AnswerPart::Kind::kCallEnd, .is_whole = is_whole});
  is_open_ = false;
  released_ = true;
}

void ToolCallParser::Release(Parts* parts) {
  has_call_ = has_call_ || !pending_.empty();
  for (AnswerPart& part : pending_) AppendPart(std::move(part), parts);
  pending_.clear();
}

absl::string_view ToolCallParser::HeldInList() const {
  const absl::string_view held = Held();
  return held.substr(std::min(held.find_first_not_of(", \t\r\n"), held.size()));
}

void ToolCallParser::FailCall(Parts* parts) {
  AppendText(opener_, parts);
  reread_ += read_;
  const bool reads_on = format_ != ToolCallFormat::kLlama3 && reread_ <= kMaxRereadBytes;
  state_ = reads_on ? State::kText : State::kPlain;
}

bool ToolCallParser::StepCall(Parts* parts) {
  absl::string_view text = Held().substr(read_);
  const CallReader::Result result = reader_->Read(&text, *this);
  read_ = Held().size() - text.size();
  if (released_) Release(parts);
  // Until a call is out, all that is held may be text.
  const bool is_held = reader_->in_call() && !(is_open_ && released_);
  if (has_call_ && !is_held) {
    Drop(read_);
    read_ = 0;
  }
  switch (result) {
    case CallReader::Result::kMore:
      return false;
    case CallReader::Result::kCallEnd:
      released_ = false;
      return true;
    case CallReader::Result::kEnd:
      released_ = false;
      state_ = State::kBetween;
      return true;
    case CallReader::Result::kBroken:
      break;
  }
  if (is_open_ && released_) {
    EndCall(reader_->has_arguments());
    Release(parts);
  } else if (!has_call_) {
    FailCall(parts);
  } else if (is_held) {
    reread_ += read_;
    Drop(Held().size() - HeldInList().size());
  }
  if (has_call_) state_ = reread_ <= kMaxRereadBytes ? State::kBetween : State::kPlain;
  return true;
}

bool ToolCallParser::DroppedOpening() const {
  return format_ == ToolCallFormat::kQwenXml && (absl::StrContains(dropped_, "<tool_call>") ||
                                                 absl::StrContains(dropped_, "<seed:tool_call>"));
}

// Drops separators up to the next call or text.
bool ToolCallParser::StepBetween(Parts* parts) {
  const absl::string_view rest = HeldBehindSpace();
  const absl::string_view opener = Opener(format_);
  bool may_grow = rest.empty();
  for (const absl::string_view separator : Separators(format_)) {
    if (absl::StartsWith(rest, separator)) {
      const size_t size = space_ + separator.size();
      absl::StrAppend(&dropped_, Held().substr(0, size));
      Drop(size);
      return true;
    }
    may_grow = may_grow || IsProperPrefix(rest, separator);
  }
  if (format_ == ToolCallFormat::kLlama3 ? absl::StartsWith(rest, "{")
                                         : absl::StartsWith(rest, opener)) {
    absl::StrAppend(&dropped_, Held().substr(0, space_));
    Drop(space_);
    EnterCall(opener);
    return true;
  }
  if (may_grow || IsProperPrefix(rest, opener)) return false;
  if (DroppedOpening()) {
    AppendText(absl::StrCat(dropped_, Held().substr(0, space_)), parts);
  }
  dropped_.clear();
  Drop(space_);
  state_ = format_ == ToolCallFormat::kLlama3 ? State::kPlain : State::kText;
  return true;
}

std::string ToolCallParser::NextId() {
  static constexpr absl::string_view kCharacters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const bool is_short = format_ == ToolCallFormat::kMistral;
  std::string id = is_short ? "" : "call_";
  for (int i = 0; i < (is_short ? 9 : 24); ++i) {
    id += kCharacters[NextSplitMix64(&id_state_) % kCharacters.size()];
  }
  return id;
}

}  // namespace baton::chat
