#include "common/chat/tool_call_syntax.h"

#include <algorithm>

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
    default:
      return {};
  }
}

const ToolCallSyntax* FindSyntax(ToolCallFormat format, absl::string_view rendered,
                                 absl::string_view name) {
  const absl::Span<const ToolCallSyntax> syntaxes = SyntaxesOf(format);
  const auto found =
      std::find_if(syntaxes.begin(), syntaxes.end(), [&](const ToolCallSyntax& syntax) {
        return absl::StrContains(rendered, absl::StrCat(syntax.opening, syntax.before_name, name,
                                                        syntax.before_arguments, "{"));
      });
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
