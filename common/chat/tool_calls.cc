#include "common/chat/tool_calls.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/splitmix64.h"
#include "common/chat/bare_calls.h"
#include "common/chat/markers.h"
#include "common/chat/printing.h"
#include "common/chat/runtime.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

constexpr size_t kMaxHeaderBytes = 1024;
constexpr size_t kMaxNameBytes = 256;
// Marks that may be parts of a call's values, of all calls that are none until one is; each lets
// what is held be read again.
constexpr int kMaxEnds = 64;
constexpr absl::string_view kDeepSeekSeparator = "<｜tool▁sep｜>";

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

// The name of the tool that stands before its arguments; empty if there is none.
absl::string_view NameInHeader(ToolCallFormat format, absl::string_view header) {
  if (format == ToolCallFormat::kMistral) {
    header = header.substr(0, header.find("[ARGS]"));
    return absl::StripAsciiWhitespace(header.substr(0, header.find("[CALL_ID]")));
  }
  if (format == ToolCallFormat::kHarmony) {
    return header.substr(0, header.find_first_of(" \t\r\n<"));
  }
  const size_t separator = header.find(kDeepSeekSeparator);
  if (format != ToolCallFormat::kDeepSeek || separator == absl::string_view::npos) return "";
  const absl::string_view after = header.substr(separator + kDeepSeekSeparator.size());
  const size_t code = after.find("```");
  const bool is_r1 = code != absl::string_view::npos;
  return absl::StripAsciiWhitespace(is_r1 ? after.substr(0, code) : header.substr(0, separator));
}

// The arguments as JSON text; empty if they are no object.
std::string ArgumentsText(const json::Value* arguments) {
  if (arguments == nullptr || arguments->kind != json::Value::Kind::kObject) return "";
  Runtime runtime(RenderLimits(), absl::UnixEpoch());
  const auto value = runtime.FromJson(*arguments, Origin::kTemplate);
  if (!value.ok()) return "";
  return JsonOf(runtime, *value, JsonStyle()).value_or(TracedText()).text;
}

}  // namespace

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
}

ToolCallParser::Delta ToolCallParser::Append(absl::string_view text) {
  Delta delta;
  absl::StrAppend(&held_, text);
  while (Step(&delta)) {
  }
  return delta;
}

ToolCallParser::Delta ToolCallParser::Finish() {
  Delta delta;
  if (state_ == State::kBetween && DroppedOpening()) {
    delta.text = absl::StrCat(dropped_, held_);
  } else if (state_ == State::kCall) {
    if (!ParseUnmarkedCalls(&delta)) delta.text = absl::StrCat(opener_, held_);
  } else if (state_ != State::kBetween || !MayBeDropped()) {
    delta.text = held_;
  }
  held_.clear();
  state_ = State::kPlain;
  return delta;
}

// Some models do not mark the end of their last call, and an answer may be cut off within the mark.
// Where no bracket closes the call and no part of the mark is there, it may itself have been cut
// off; a "<" alone may begin a further argument.
bool ToolCallParser::ParseUnmarkedCalls(Delta* delta) {
  const absl::string_view end = BareCallEnd(format_);
  if (end.empty()) return false;
  const bool has_brackets = format_ == ToolCallFormat::kLfm2 || format_ == ToolCallFormat::kGemma4;
  const size_t begun = HeldBytes(held_, end);
  if (!has_brackets && begun < 2) return false;
  const absl::string_view calls(held_.data(), held_.size() - begun);
  return ParseBareCalls(calls, delta).value_or(false);
}

// True if what follows a call is white space, and maybe the beginning of a mark that is dropped.
bool ToolCallParser::MayBeDropped() const {
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(held_);
  return rest.empty() || absl::c_any_of(Separators(format_), [&](absl::string_view separator) {
           return IsProperPrefix(rest, separator);
         });
}

bool ToolCallParser::Step(Delta* delta) {
  switch (state_) {
    case State::kStart:
      return StepStart();
    case State::kFirst:
      return StepFirst();
    case State::kText:
      return StepText(delta);
    case State::kCall:
      return BareCallEnd(format_).empty() ? StepCall(delta) : StepBareCall(delta);
    case State::kBetween:
      return StepBetween(delta);
    case State::kPlain:
      absl::StrAppend(&delta->text, held_);
      held_.clear();
      return false;
  }
  return false;
}

// Decides, in Llama's format, whether the answer is a call.
bool ToolCallParser::StepStart() {
  static constexpr absl::string_view kTag = "<|python_tag|>";
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(held_);
  const bool has_tag = absl::ConsumePrefix(&rest, kTag);
  rest = absl::StripLeadingAsciiWhitespace(rest);
  if (rest.empty() || (!has_tag && IsProperPrefix(rest, kTag))) return false;
  if (rest[0] != '{') {
    state_ = State::kPlain;
    return true;
  }
  EnterCall(std::string(held_, 0, held_.size() - rest.size()));
  return true;
}

// Decides whether the answer begins with a call, or with what may stand before one.
bool ToolCallParser::StepFirst() {
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(held_);
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

bool ToolCallParser::StepText(Delta* delta) {
  size_t first = std::string::npos;
  const auto look_for = [&](absl::string_view marker) {
    first = std::min(first, held_.find(marker.data(), 0, marker.size()));
  };
  look_for(Opener(format_));
  size_t kept = HeldBytes(held_, Opener(format_));
  for (const absl::string_view separator : Separators(format_)) {
    if (separator == "```") continue;  // also ends code in a text
    look_for(separator);
    kept = std::max(kept, HeldBytes(held_, separator));
  }
  const bool found = first != std::string::npos;
  const absl::string_view before =
      absl::string_view(held_).substr(0, found ? first : held_.size() - kept);
  const absl::string_view text = absl::StripTrailingAsciiWhitespace(before);
  absl::StrAppend(&delta->text, text);
  if (!found) {
    held_.erase(0, text.size());
    return false;
  }
  dropped_ = std::string(before.substr(text.size()));
  held_.erase(0, first);
  state_ = State::kBetween;
  return true;
}

void ToolCallParser::EnterCall(absl::string_view opener) {
  opener_ = absl::StrCat(std::exchange(dropped_, ""), opener);
  held_.erase(0, opener.size());
  state_ = State::kCall;
  json_start_ = std::string::npos;
  scanned_ = 0;
  depth_ = 0;
  in_string_ = false;
  escaped_ = false;
}

void ToolCallParser::FailCall(Delta* delta) {
  absl::StrAppend(&delta->text, opener_);
  state_ = format_ == ToolCallFormat::kLlama3 ? State::kPlain : State::kText;
}

bool ToolCallParser::StepCall(Delta* delta) {
  for (; scanned_ < held_.size(); ++scanned_) {
    const char c = held_[scanned_];
    if (json_start_ == std::string::npos) {
      // Mistral's list begins the call; a bracket after a name belongs to [ARGS].
      const bool is_list = c == '[' && format_ == ToolCallFormat::kMistral &&
                           absl::StripAsciiWhitespace(held_.substr(0, scanned_)).empty();
      if (c != '{' && !is_list) {
        const bool has_header = format_ == ToolCallFormat::kMistral ||
                                format_ == ToolCallFormat::kDeepSeek ||
                                format_ == ToolCallFormat::kHarmony;
        if (scanned_ < kMaxHeaderBytes && (has_header || absl::ascii_isspace(c))) continue;
        FailCall(delta);
        return true;
      }
      json_start_ = scanned_;
    }
    if (in_string_) {
      if (!escaped_ && c == '"') in_string_ = false;
      escaped_ = !escaped_ && c == '\\';
      continue;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c != '}' && c != ']') continue;
    if (--depth_ > 0) continue;
    const absl::string_view whole(held_);
    const size_t end = scanned_ + 1;
    if (ParseCalls(whole.substr(0, json_start_), whole.substr(json_start_, end - json_start_),
                   delta)) {
      held_.erase(0, end);
      dropped_.clear();
      state_ = State::kBetween;
    } else {
      FailCall(delta);
    }
    return true;
  }
  return false;
}

bool ToolCallParser::StepBareCall(Delta* delta) {
  const absl::string_view end = BareCallEnd(format_);
  for (;;) {
    const size_t at = held_.find(end.data(), scanned_, end.size());
    if (at == std::string::npos) {
      scanned_ = held_.size() - std::min(held_.size(), end.size() - 1);
      return false;
    }
    const std::optional<bool> parsed =
        ParseBareCalls(absl::string_view(held_).substr(0, at), delta);
    if (parsed && *parsed) {
      held_.erase(0, at + end.size());
      dropped_.clear();
      ends_ = 0;
      state_ = State::kBetween;
      return true;
    }
    if (parsed || ++ends_ >= kMaxEnds) {
      FailCall(delta);
      return true;
    }
    scanned_ = at + 1;
  }
}

std::optional<bool> ToolCallParser::ParseBareCalls(absl::string_view text, Delta* delta) {
  std::vector<BareCall> calls;
  const BareCallsResult result = ReadBareCalls(format_, text, tools_.get(), &calls);
  if (result == BareCallsResult::kIncomplete) return std::nullopt;
  for (const BareCall& call : calls) {
    if (call.name.size() > kMaxNameBytes) return false;
  }
  for (BareCall& call : calls) {
    delta->calls.push_back({NextId(), std::move(call.name), ArgumentsText(&call.arguments)});
  }
  return result == BareCallsResult::kCalls;
}

bool ToolCallParser::ParseCalls(absl::string_view header, absl::string_view json, Delta* delta) {
  const auto parsed = json::Parse(json, "a tool call");
  if (!parsed.ok()) return false;
  const absl::string_view name = NameInHeader(format_, header);
  if (!name.empty()) {
    std::string arguments = ArgumentsText(&*parsed);
    if (arguments.empty() || name.size() > kMaxNameBytes) return false;
    delta->calls.push_back({NextId(), std::string(name), std::move(arguments)});
    return true;
  }
  if (!absl::StripAsciiWhitespace(header).empty()) return false;
  std::vector<ToolCall> calls;
  const bool is_list = parsed->kind == json::Value::Kind::kArray;
  const absl::Span<const json::Value> objects =
      is_list ? absl::MakeConstSpan(parsed->items) : absl::MakeConstSpan(&*parsed, 1);
  for (const json::Value& object : objects) {
    const json::Value* tool = object.Find("name");
    const json::Value* arguments = object.Find("arguments");
    if (arguments == nullptr) arguments = object.Find("parameters");
    std::string text = ArgumentsText(arguments);
    if (tool == nullptr || tool->scalar.kind != json::Scalar::Kind::kString ||
        tool->scalar.text.empty() || tool->scalar.text.size() > kMaxNameBytes || text.empty()) {
      return false;
    }
    calls.push_back({NextId(), tool->scalar.text, std::move(text)});
  }
  if (calls.empty()) return false;
  delta->calls.insert(delta->calls.end(), calls.begin(), calls.end());
  return true;
}

bool ToolCallParser::DroppedOpening() const {
  return format_ == ToolCallFormat::kQwenXml && (absl::StrContains(dropped_, "<tool_call>") ||
                                                 absl::StrContains(dropped_, "<seed:tool_call>"));
}

// Drops separators up to the next call or text.
bool ToolCallParser::StepBetween(Delta* delta) {
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(held_);
  const absl::string_view opener = Opener(format_);
  bool may_grow = rest.empty();
  for (const absl::string_view separator : Separators(format_)) {
    if (absl::StartsWith(rest, separator)) {
      rest.remove_prefix(separator.size());
      absl::StrAppend(&dropped_, held_.substr(0, held_.size() - rest.size()));
      held_.erase(0, held_.size() - rest.size());
      return true;
    }
    may_grow = may_grow || IsProperPrefix(rest, separator);
  }
  if (format_ == ToolCallFormat::kLlama3 ? absl::StartsWith(rest, "{")
                                         : absl::StartsWith(rest, opener)) {
    absl::StrAppend(&dropped_, held_.substr(0, held_.size() - rest.size()));
    held_.erase(0, held_.size() - rest.size());
    EnterCall(opener);
    return true;
  }
  if (may_grow || IsProperPrefix(rest, opener)) return false;
  if (DroppedOpening()) {
    absl::StrAppend(&delta->text, dropped_, held_.substr(0, held_.size() - rest.size()));
  }
  dropped_.clear();
  held_.erase(0, held_.size() - rest.size());
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
