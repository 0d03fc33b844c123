#include "common/chat/tool_call_syntax.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

constexpr absl::string_view kJsonName = R"({"name": ")";
constexpr absl::string_view kJsonArguments = R"(", "arguments": )";

constexpr ToolCallSyntax kHermesSyntax[] = {
    {.before_name = "<tool_call>\n{\"name\": \"",
     .before_arguments = kJsonArguments,
     .after_arguments = "}\n</tool_call>",
     .separator = "\n",
     .trigger = "<tool_call>",
     .quoted_names = true},
};

constexpr absl::string_view kLlamaBeginnings[] = {"{", "<|python_tag|>"};
constexpr ToolCallSyntax kLlamaSyntax[] = {
    {.before_name = kJsonName,
     .before_arguments = R"(", "parameters": )",
     .after_arguments = "}",
     .separator = "; ",
     .excluded = kLlamaBeginnings,
     .quoted_names = true},
};

constexpr ToolCallSyntax MistralList(absl::string_view opening) {
  return {.opening = opening,
          .before_name = kJsonName,
          .before_arguments = kJsonArguments,
          .after_arguments = "}",
          .separator = ", ",
          .closing = "]",
          .trigger = "[TOOL_CALLS]",
          .quoted_names = true};
}
constexpr ToolCallSyntax kMistralSyntax[] = {
    {.before_name = "[TOOL_CALLS]", .before_arguments = "[ARGS]", .trigger = "[TOOL_CALLS]"},
    MistralList("[TOOL_CALLS]["),
    MistralList("[TOOL_CALLS] ["),
};

constexpr absl::string_view kDeepSeekOpener[] = {"<｜tool▁call▁begin｜>"};
constexpr ToolCallSyntax kDeepSeekSyntax[] = {
    // V3 and R1.
    {.opening = "<｜tool▁calls▁begin｜>",
     .before_name = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .before_arguments = "\n```json\n",
     .after_arguments = "\n```<｜tool▁call▁end｜>",
     .separator = "\n",
     .closing = "<｜tool▁calls▁end｜>",
     .trigger = "<｜tool▁calls▁begin｜>",
     .excluded = kDeepSeekOpener},
    // V3.1.
    {.opening = "<｜tool▁calls▁begin｜>",
     .before_name = "<｜tool▁call▁begin｜>",
     .before_arguments = "<｜tool▁sep｜>",
     .after_arguments = "<｜tool▁call▁end｜>",
     .closing = "<｜tool▁calls▁end｜>",
     .trigger = "<｜tool▁calls▁begin｜>",
     .excluded = kDeepSeekOpener},
};

constexpr absl::string_view kQwenXmlOpener[] = {"<function="};
constexpr ToolCallSyntax kQwenXmlSyntax[] = {
    {.before_name = "<tool_call>\n<function=",
     .before_arguments = ">\n",
     .after_arguments = "</function>\n</tool_call>",
     .separator = "\n",
     .trigger = "<tool_call>",
     .excluded = kQwenXmlOpener,
     .argument_style = ToolCallSyntax::ArgumentStyle::kQwenXml},
};

constexpr ToolCallSyntax kGlmSyntax[] = {
    // 4.5 and 4.6.
    {.before_name = "<tool_call>",
     .before_arguments = "\n",
     .after_arguments = "</tool_call>",
     .separator = "\n",
     .trigger = "<tool_call>",
     .argument_style = ToolCallSyntax::ArgumentStyle::kGlmXml},
    // 4.7.
    {.before_name = "<tool_call>",
     .after_arguments = "</tool_call>",
     .trigger = "<tool_call>",
     .argument_style = ToolCallSyntax::ArgumentStyle::kGlmXmlCompact},
};

constexpr ToolCallSyntax kLfm2Syntax[] = {
    {.opening = "<|tool_call_start|>[",
     .before_arguments = "(",
     .after_arguments = ")",
     .separator = ", ",
     .closing = "]<|tool_call_end|>",
     .trigger = "<|tool_call_start|>",
     .argument_style = ToolCallSyntax::ArgumentStyle::kPython},
};

constexpr ToolCallSyntax kGemmaSyntax[] = {
    {.before_name = "<|tool_call>call:",
     .before_arguments = "{",
     .after_arguments = "}<tool_call|>",
     .trigger = "<|tool_call>",
     .argument_style = ToolCallSyntax::ArgumentStyle::kGemma},
};

constexpr absl::string_view kHarmonyMarks[] = {"<|channel|>commentary to=functions.", "<|end|>"};
constexpr ToolCallSyntax kHarmonySyntax[] = {
    {.before_name = "<|channel|>commentary to=functions.",
     .before_arguments = " <|constrain|>json<|message|>",
     .separator = "<|call|>",
     .excluded = kHarmonyMarks,
     .before_answer = "<|channel|>final<|message|>",
     .before_thought = "<|channel|>analysis<|message|>",
     .before_preamble = "<|channel|>commentary<|message|>",
     .after_message = "<|end|><|start|>assistant"},
};

// What stands around arguments, in order; without the texts of the syntax itself.
std::vector<absl::string_view> MarksOf(ToolCallSyntax::ArgumentStyle style) {
  switch (style) {
    case ToolCallSyntax::ArgumentStyle::kJson:
      return {"{"};
    case ToolCallSyntax::ArgumentStyle::kQwenXml:
      return {"<parameter=", ">\n", "\n</parameter>\n"};
    case ToolCallSyntax::ArgumentStyle::kGlmXml:
      return {"<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"};
    case ToolCallSyntax::ArgumentStyle::kGlmXmlCompact:
      return {"<arg_key>", "</arg_key><arg_value>", "</arg_value>"};
    case ToolCallSyntax::ArgumentStyle::kPython:
      return {"", "=", ""};
    case ToolCallSyntax::ArgumentStyle::kGemma:
      return {"", ":<|\"|>", "<|\"|>"};
  }
  return {};
}

// True if `rendered` has a call of the tool `name`.
bool HasCall(absl::string_view rendered, const ToolCallSyntax& syntax, absl::string_view name) {
  const std::vector<absl::string_view> marks = MarksOf(syntax.argument_style);
  const std::string begin = absl::StrCat(syntax.opening, syntax.before_name, name,
                                         syntax.before_arguments, marks.front());
  size_t at = rendered.find(begin);
  if (at == absl::string_view::npos || marks.size() == 1) return at != absl::string_view::npos;
  at = rendered.find(marks[1], at + begin.size());
  if (at == absl::string_view::npos) return false;
  return absl::StrContains(rendered.substr(at),
                           absl::StrCat(marks[2], syntax.after_arguments, syntax.closing));
}

}  // namespace

absl::Span<const ToolCallSyntax> SyntaxesOf(ToolCallFormat format) {
  switch (format) {
    case ToolCallFormat::kHermes:
      return kHermesSyntax;
    case ToolCallFormat::kLlama3:
      return kLlamaSyntax;
    case ToolCallFormat::kMistral:
      return kMistralSyntax;
    case ToolCallFormat::kDeepSeek:
      return kDeepSeekSyntax;
    case ToolCallFormat::kQwenXml:
      return kQwenXmlSyntax;
    case ToolCallFormat::kGlm:
      return kGlmSyntax;
    case ToolCallFormat::kLfm2:
      return kLfm2Syntax;
    case ToolCallFormat::kGemma4:
      return kGemmaSyntax;
    case ToolCallFormat::kHarmony:
      return kHarmonySyntax;
    default:
      return {};
  }
}

const ToolCallSyntax* FindSyntax(ToolCallFormat format, absl::string_view rendered,
                                 absl::string_view name) {
  const absl::Span<const ToolCallSyntax> syntaxes = SyntaxesOf(format);
  // Templates write the recipient before the channel, where models write it behind.
  if (format == ToolCallFormat::kHarmony) {
    return absl::StrContains(rendered, absl::StrCat("to=functions.", name, "<")) ||
                   absl::StrContains(rendered, absl::StrCat("to=functions.", name, " "))
               ? &syntaxes[0]
               : nullptr;
  }
  // Templates of LFM2 leave earlier calls out, but for those of 2.5; its models write all alike.
  if (format == ToolCallFormat::kLfm2 && !absl::StrContains(rendered, syntaxes.front().trigger)) {
    return &syntaxes.front();
  }
  const auto found =
      std::find_if(syntaxes.begin(), syntaxes.end(),
                   [&](const ToolCallSyntax& syntax) { return HasCall(rendered, syntax, name); });
  return found == syntaxes.end() ? nullptr : &*found;
}

std::optional<std::string> WrittenName(const ToolCallSyntax& syntax, absl::string_view name) {
  if (name.empty() || !IsUtf8(name)) return std::nullopt;
  if (syntax.quoted_names) {
    const std::string quoted = json::ToText(json::TextValue(std::string(name)));
    return quoted.substr(1, quoted.size() - 2);
  }
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':';
  };
  if (!std::all_of(name.begin(), name.end(), is_plain)) return std::nullopt;
  return std::string(name);
}

}  // namespace baton::chat
