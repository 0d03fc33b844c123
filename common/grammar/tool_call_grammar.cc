#include "common/grammar/tool_call_grammar.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/bare_arguments.h"
#include "common/grammar/schema_check.h"
#include "common/grammar/structural_tag.h"

namespace baton::grammar {
namespace {

constexpr absl::string_view kToolCalls = "structured_output.tool_calls";
constexpr absl::string_view kSpace = " \t\n\v\f\r";

// The texts in the order in which a GrammarSpec has them; then the excluded ones, after their
// number; with "m" before_answer, after_message and, after their number, those of before_message;
// and the names and parameters of the tools.
enum Place : size_t {
  kFlags,  // "r" if calls are required, "s" if there is one at most, "m" if answers are messages
  kOpening,
  kBeforeName,
  kBeforeArguments,
  kAfterArguments,
  kSeparator,
  kClosing,
  kTrigger,
  kArgumentStyle,  // its number
  kAnswerSchema,
  kExcludedCount,
  kFirstExcluded,
};
constexpr const char* kNames[] = {
    "",          "opening", "before_name", "before_arguments", "after_arguments",
    "separator", "closing", "trigger"};

// The texts, found again.
class Calls {
 public:
  // INVALID_ARGUMENT if ToolCallTexts did not make them.
  static absl::StatusOr<Calls> Read(absl::Span<const std::string> texts) {
    const absl::Status malformed = InvalidField("SCHEMA_INVALID", kToolCalls, "malformed texts");
    Calls calls;
    size_t excluded = 0;
    int style = 0;
    constexpr absl::string_view kAllFlags[] = {"", "r", "s", "rs", "m", "rm", "sm", "rsm"};
    if (texts.size() < kFirstExcluded || !absl::c_linear_search(kAllFlags, texts[kFlags]) ||
        !absl::SimpleAtoi(texts[kArgumentStyle], &style) ||
        !v1::StructuredOutput::ToolCalls::ArgumentStyle_IsValid(style) ||
        !absl::SimpleAtoi(texts[kExcludedCount], &excluded) ||
        excluded > texts.size() - kFirstExcluded) {
      return malformed;
    }
    calls.texts_ = texts;
    calls.style_ = static_cast<ArgumentStyle>(style);
    calls.excluded_ = texts.subspan(kFirstExcluded, excluded);
    absl::Span<const std::string> rest = texts.subspan(kFirstExcluded + excluded);
    if (absl::StrContains(texts[kFlags], 'm')) {
      size_t count = 0;
      if (rest.size() < 3 || !absl::SimpleAtoi(rest[2], &count) || count > rest.size() - 3) {
        return malformed;
      }
      calls.before_answer_ = rest[0];
      calls.after_message_ = rest[1];
      calls.before_message_ = rest.subspan(3, count);
      rest = rest.subspan(3 + count);
    }
    if (rest.size() % 2 != 0) return malformed;
    calls.tools_ = rest;
    return calls;
  }

  bool required() const { return absl::StrContains(texts_[kFlags], 'r'); }
  bool single() const { return absl::StrContains(texts_[kFlags], 's'); }
  ArgumentStyle style() const { return style_; }
  const std::string& at(Place place) const { return texts_[place]; }
  absl::Span<const std::string> excluded() const { return excluded_; }
  bool messages() const { return absl::StrContains(texts_[kFlags], 'm'); }
  const std::string& before_answer() const { return before_answer_; }
  absl::Span<const std::string> before_message() const { return before_message_; }
  const std::string& after_message() const { return after_message_; }
  size_t tools() const { return tools_.size() / 2; }
  const std::string& name(size_t tool) const { return tools_[2 * tool]; }
  const std::string& parameters(size_t tool) const { return tools_[2 * tool + 1]; }
  // What a text with calls goes on with after `trigger`.
  const std::string& beginning() const { return at(at(kOpening).empty() ? kBeforeName : kOpening); }

 private:
  absl::Span<const std::string> texts_, excluded_, before_message_, tools_;
  std::string before_answer_, after_message_;
  ArgumentStyle style_ = v1::StructuredOutput::ToolCalls::ARGUMENT_STYLE_JSON;
};

absl::Status CheckText(const std::string& field, const std::string& text, size_t most,
                       bool may_be_empty = true) {
  if (text.size() > most) {
    return InvalidField(
        "SCHEMA_TOO_COMPLEX", field,
        absl::StrCat("a text of ", text.size(), " bytes given, at most ", most, " expected"));
  }
  if (!IsUtf8(text)) return InvalidField("SCHEMA_INVALID", field, "a text in UTF-8 expected");
  if (!text.empty() || may_be_empty) return absl::OkStatus();
  return InvalidField("SCHEMA_INVALID", field, "a text that is not empty expected");
}

// REQUIRES: calls.messages().
absl::Status CheckMessages(const Calls& calls) {
  const std::string field = absl::StrCat(kToolCalls, ".before_answer");
  if (calls.required() || !calls.at(kTrigger).empty()) {
    return InvalidField("SCHEMA_INVALID", field, "given together with required or trigger");
  }
  BATON_RETURN_IF_ERROR(
      CheckText(field, calls.before_answer(), kMaxCallTextBytes, /*may_be_empty=*/false));
  const size_t count = calls.before_message().size();
  BATON_RETURN_IF_ERROR(CheckText(absl::StrCat(kToolCalls, ".after_message"), calls.after_message(),
                                  kMaxCallTextBytes, /*may_be_empty=*/count == 0));
  if (count > kMaxMessageTexts) {
    return InvalidField("SCHEMA_TOO_COMPLEX", absl::StrCat(kToolCalls, ".before_message"),
                        absl::StrCat(count, " given, at most ", kMaxMessageTexts, " expected"));
  }
  for (size_t i = 0; i < count; ++i) {
    BATON_RETURN_IF_ERROR(CheckText(absl::StrCat(kToolCalls, ".before_message[", i, "]"),
                                    calls.before_message()[i], kMaxCallTextBytes,
                                    /*may_be_empty=*/false));
  }
  return absl::OkStatus();
}

absl::Status CheckFormat(const Calls& calls) {
  const auto field = [](absl::string_view name) { return absl::StrCat(kToolCalls, ".", name); };
  for (const Place place :
       {kOpening, kBeforeName, kBeforeArguments, kAfterArguments, kSeparator, kClosing, kTrigger}) {
    const bool may_be_empty = place == kBeforeName        ? !calls.at(kOpening).empty()
                              : place == kBeforeArguments ? !IsJson(calls.style())
                                                          : true;
    BATON_RETURN_IF_ERROR(
        CheckText(field(kNames[place]), calls.at(place), kMaxCallTextBytes, may_be_empty));
  }
  if (calls.excluded().size() > kMaxExcludedTexts) {
    return InvalidField(
        "SCHEMA_TOO_COMPLEX", field("excluded"),
        absl::StrCat(calls.excluded().size(), " given, at most ", kMaxExcludedTexts, " expected"));
  }
  for (size_t i = 0; i < calls.excluded().size(); ++i) {
    const std::string& text = calls.excluded()[i];
    const std::string name = absl::StrCat(field("excluded"), "[", i, "]");
    BATON_RETURN_IF_ERROR(CheckText(name, text, kMaxCallTextBytes, /*may_be_empty=*/false));
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (calls.at(kTrigger).empty() && !calls.messages() &&
        (!std::all_of(text.begin(), text.end(), is_ascii) || absl::StrContains(kSpace, text[0]))) {
      return InvalidField("SCHEMA_INVALID", name,
                          "without a trigger, ASCII that does not begin with white space expected");
    }
  }
  const std::string& trigger = calls.at(kTrigger);
  if (calls.required() && (!trigger.empty() || !calls.excluded().empty())) {
    return InvalidField("SCHEMA_INVALID", field(trigger.empty() ? "excluded" : "trigger"),
                        "given together with required: there is no text beside the calls");
  }
  const std::string& answer = calls.at(kAnswerSchema);
  if (calls.messages()) {
    BATON_RETURN_IF_ERROR(CheckMessages(calls));
    return answer.empty() ? absl::OkStatus()
                          : NormalSchema(answer, field("answer_schema")).status();
  }
  if (!answer.empty()) {
    if (calls.required() || !trigger.empty() || !calls.excluded().empty()) {
      return InvalidField("SCHEMA_INVALID", field("answer_schema"),
                          "given together with required, trigger or excluded");
    }
    return NormalSchema(answer, field("answer_schema")).status();
  }
  if (!absl::StartsWith(calls.beginning(), trigger)) {
    return InvalidField("SCHEMA_INVALID", field("trigger"),
                        "the beginning of opening, or of before_name if that is empty, expected");
  }
  const auto begins_calls = [&](const std::string& text) {
    return absl::StartsWith(calls.beginning(), text);
  };
  if (!calls.required() && trigger.empty() &&
      std::none_of(calls.excluded().begin(), calls.excluded().end(), begins_calls)) {
    return InvalidField("SCHEMA_INVALID", field("excluded"),
                        "without a trigger, a text that calls begin with expected");
  }
  return absl::OkStatus();
}

absl::Status CheckTools(const Calls& calls) {
  if (calls.tools() < 1 || calls.tools() > kMaxTools) {
    return InvalidField(calls.tools() < 1 ? "SCHEMA_INVALID" : "SCHEMA_TOO_COMPLEX",
                        absl::StrCat(kToolCalls, ".tools"),
                        absl::StrCat(calls.tools(), " given, 1 to ", kMaxTools, " expected"));
  }
  size_t bytes = 0;
  std::set<absl::string_view> names;
  for (size_t i = 0; i < calls.tools(); ++i) {
    const std::string field = absl::StrCat(kToolCalls, ".tools[", i, "]");
    BATON_RETURN_IF_ERROR(
        CheckText(field + ".name", calls.name(i), kMaxToolNameBytes, /*may_be_empty=*/false));
    if (!names.insert(calls.name(i)).second) {
      return InvalidField("SCHEMA_INVALID", field + ".name", "another tool has the same name");
    }
    bytes += calls.parameters(i).size();
    if (bytes > kMaxParametersBytes) {
      return InvalidField("SCHEMA_TOO_COMPLEX", field + ".parameters",
                          absl::StrCat("the schemas up to this one have ", bytes,
                                       " bytes, at most ", kMaxParametersBytes, " expected"));
    }
    BATON_RETURN_IF_ERROR(
        CheckArguments(calls.parameters(i), calls.style(), field + ".parameters"));
  }
  return absl::OkStatus();
}

// --- What XGrammar gets.

// Adds the rule of texts that begin with none of `prefixes`, all of which begin with `so_far`, for
// a text that has begun with `so_far`. `first`: no white space comes next.
void AddNotBeginning(const std::set<std::string>& prefixes, const std::string& so_far, bool first,
                     int* last_rule, std::string* rules) {
  const std::string name = absl::StrCat("r", (*last_rule)++);
  std::set<char> next;
  for (const std::string& prefix : prefixes) next.insert(prefix[so_far.size()]);
  const std::string characters(next.begin(), next.end());
  std::string rule = absl::StrCat(
      name, " ::= \"\" | ", EbnfClass(first ? characters + std::string(kSpace) : characters, true),
      " [\\u0000-\\U0010ffff]*");
  for (const char c : characters) {
    const std::string longer = so_far + c;
    if (prefixes.contains(longer)) continue;
    std::set<std::string> deeper;
    for (const std::string& prefix : prefixes) {
      if (absl::StartsWith(prefix, longer)) deeper.insert(prefix);
    }
    absl::StrAppend(&rule, " | ", EbnfClass(std::string(1, c), false), " r", *last_rule);
    AddNotBeginning(deeper, longer, /*first=*/false, last_rule, rules);
  }
  absl::StrAppend(rules, rule, "\n");
}

// The format of texts that begin with none of `excluded` after white space.
std::string NotBeginning(absl::Span<const std::string> excluded) {
  const std::set<std::string> prefixes(excluded.begin(), excluded.end());
  std::string rules;
  int last_rule = 0;
  AddNotBeginning(prefixes, "", /*first=*/true, &last_rule, &rules);
  return GrammarOf(absl::StrCat(EbnfClass(kSpace, false), "* r0"), rules);
}

class Builder {
 public:
  Builder(const Calls& calls, absl::Span<const SpecialToken> special_tokens,
          std::optional<int> max_whitespace)
      : calls_(calls), special_tokens_(special_tokens), max_whitespace_(max_whitespace) {
    for (size_t place = kOpening; place <= kTrigger; ++place) {
      replaced_[place] = Replaced(calls.at(static_cast<Place>(place)));
    }
    before_answer_ = Replaced(calls.before_answer());
    after_message_ = Replaced(calls.after_message());
    for (const std::string& text : calls.before_message()) {
      before_message_.push_back(Replaced(text));
    }
  }

  absl::StatusOr<ToolCallGrammar> Build() {
    const bool has_opening = !calls_.at(kOpening).empty();
    if (!absl::StartsWith(replaced_[has_opening ? kOpening : kBeforeName], replaced_[kTrigger])) {
      return InvalidField("SCHEMA_INVALID", absl::StrCat(kToolCalls, ".trigger"),
                          "it ends within a special token of what calls begin with");
    }
    BATON_RETURN_IF_ERROR(BuildArguments());
    const std::string format = calls_.required()   ? AllCalls("")
                               : calls_.messages() ? Messages()
                                                   : TextAndCalls();
    ToolCallGrammar grammar;
    grammar.structural_tag = absl::StrCat(R"({"type":"structural_tag","format":)", format, "}");
    grammar.special_tokens.assign(used_.begin(), used_.end());
    return grammar;
  }

 private:
  absl::Status BuildArguments() {
    for (size_t i = 0; i < calls_.tools(); ++i) {
      BATON_ASSIGN_OR_RETURN(
          arguments_.emplace_back(),
          Arguments(calls_.parameters(i), calls_.style(), kToolCalls, max_whitespace_,
                    [this](absl::string_view text) { return Replaced(text); }));
    }
    if (calls_.at(kAnswerSchema).empty()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const std::string schema, NormalSchema(calls_.at(kAnswerSchema)));
    answer_ = JsonOfSchema(schema, max_whitespace_);
    return absl::OkStatus();
  }

  // The text with its special tokens replaced.
  std::string Replaced(absl::string_view text) {
    std::string replaced;
    while (!text.empty()) {
      const SpecialToken* longest = nullptr;
      for (const SpecialToken& token : special_tokens_) {
        const bool longer = longest == nullptr || token.text.size() > longest->text.size();
        if (!token.text.empty() && longer && absl::StartsWith(text, token.text)) longest = &token;
      }
      if (longest != nullptr) {
        used_.insert(longest->id);
        replaced += PrivateText(longest->id);
      } else {
        replaced.push_back(text[0]);
      }
      text.remove_prefix(longest != nullptr ? longest->text.size() : 1);
    }
    return replaced;
  }

  std::string Call(size_t tool, absl::string_view before_name) const {
    return Tag(absl::StrCat(before_name, calls_.name(tool), replaced_[kBeforeArguments]),
               arguments_[tool], replaced_[kAfterArguments]);
  }

  // All calls of an answer, or of a place in a text, without `begun`, with which they begin.
  std::string AllCalls(absl::string_view begun) const {
    std::vector<std::string> calls;
    for (size_t i = 0; i < calls_.tools(); ++i) calls.push_back(Call(i, replaced_[kBeforeName]));
    std::vector<std::string> parts;
    const std::string opening = replaced_[kOpening].substr(begun.size());
    if (!opening.empty()) parts.push_back(Constant(opening));
    parts.push_back(absl::StrCat(
        R"({"type":"tags_with_separator","tags":[)", absl::StrJoin(calls, ","), R"(],"separator":)",
        JsonString(replaced_[kSeparator]), R"(,"at_least_one":true)", R"(,"stop_after_first":)",
        calls_.single() ? "true" : "false", "}"));
    if (!replaced_[kClosing].empty()) parts.push_back(Constant(replaced_[kClosing]));
    return Sequence(parts);
  }

  // Messages, and the one that is the answer.
  std::string Messages() const {
    std::vector<std::string> excluded(calls_.excluded().begin(), calls_.excluded().end());
    // No text has this byte, with which the private texts of all special tokens begin. Where each
    // of these is excluded by itself, XGrammar lets them through before an end that begins with
    // one.
    excluded.emplace_back("\xff");
    const std::string text = AnyText(excluded);
    std::vector<std::string> parts;
    if (!before_message_.empty()) {
      std::vector<std::string> messages;
      for (const std::string& begin : before_message_) {
        messages.push_back(Tag(begin, text, after_message_));
      }
      parts.push_back(Star(AnyOf(messages)));
    }
    const std::string& answer = answer_.empty() ? text : answer_;
    parts.push_back(AnyOf({AllCalls(""), Sequence({Constant(before_answer_), answer})}));
    return Sequence(parts);
  }

  std::string TextAndCalls() {
    const std::string& trigger = replaced_[kTrigger];
    if (!answer_.empty()) return AnyOf({AllCalls(""), answer_});
    if (trigger.empty()) {
      return AnyOf({AllCalls(""), NotBeginning(calls_.excluded())});
    }
    std::string after_trigger;
    if (!calls_.at(kOpening).empty()) {
      after_trigger = AllCalls(trigger);
    } else {
      // One call: what separates calls is text between them.
      const absl::string_view before_name = replaced_[kBeforeName];
      std::vector<std::string> calls;
      for (size_t i = 0; i < calls_.tools(); ++i) {
        calls.push_back(Call(i, before_name.substr(trigger.size())));
      }
      after_trigger = AnyOf(calls);
    }
    std::vector<std::string> excluded(calls_.excluded().begin(), calls_.excluded().end());
    // Spelled in other tokens, the trigger would begin calls all the same to who reads the text.
    if (trigger != calls_.at(kTrigger)) excluded.push_back(calls_.at(kTrigger));
    for (const int32_t id : used_) {
      const std::string text = PrivateText(id);
      if (!absl::StrContains(trigger, text)) excluded.push_back(text);
    }
    return absl::StrCat(R"({"type":"dispatch","rules":[[)", JsonString(trigger), ",", after_trigger,
                        R"(]],"loop":)", calls_.single() ? "false" : "true", R"(,"excludes":)",
                        JsonStrings(excluded), "}");
  }

  const Calls& calls_;
  const absl::Span<const SpecialToken> special_tokens_;
  const std::optional<int> max_whitespace_;
  std::string replaced_[kTrigger + 1];  // the texts of the format, by Place
  std::string before_answer_, after_message_;
  std::vector<std::string> before_message_;
  std::vector<std::string> arguments_;  // of each tool, as a format
  std::string answer_;                  // instead of calls, as a format; empty without
  std::set<int32_t> used_;
};

}  // namespace

std::vector<std::string> ToolCallTexts(const v1::StructuredOutput::ToolCalls& calls) {
  const bool has_messages = !calls.before_answer().empty() || !calls.after_message().empty() ||
                            calls.before_message_size() > 0;
  std::vector<std::string> texts = {
      absl::StrCat(calls.required() ? "r" : "", calls.single() ? "s" : "", has_messages ? "m" : ""),
      calls.opening(),
      calls.before_name(),
      calls.before_arguments(),
      calls.after_arguments(),
      calls.separator(),
      calls.closing(),
      calls.trigger(),
      absl::StrCat(calls.argument_style()),
      calls.answer_schema(),
      absl::StrCat(calls.excluded_size())};
  texts.insert(texts.end(), calls.excluded().begin(), calls.excluded().end());
  if (has_messages) {
    texts.insert(texts.end(), {calls.before_answer(), calls.after_message(),
                               absl::StrCat(calls.before_message_size())});
    texts.insert(texts.end(), calls.before_message().begin(), calls.before_message().end());
  }
  for (const auto& tool : calls.tools()) {
    texts.push_back(tool.name());
    texts.push_back(tool.parameters());
  }
  return texts;
}

absl::Status CheckToolCalls(absl::Span<const std::string> texts) {
  BATON_ASSIGN_OR_RETURN(const Calls calls, Calls::Read(texts));
  BATON_RETURN_IF_ERROR(CheckFormat(calls));
  return CheckTools(calls);
}

std::string PrivateText(int32_t id) { return absl::StrCat("\xff", id, "\xff"); }

absl::StatusOr<ToolCallGrammar> MakeToolCallGrammar(absl::Span<const std::string> texts,
                                                    absl::Span<const SpecialToken> special_tokens,
                                                    std::optional<int> max_whitespace) {
  BATON_RETURN_IF_ERROR(CheckToolCalls(texts));
  BATON_ASSIGN_OR_RETURN(const Calls calls, Calls::Read(texts));
  return Builder(calls, special_tokens, max_whitespace).Build();
}

}  // namespace baton::grammar
