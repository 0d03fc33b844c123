// The tools of a chat request, the calls that it forces, and those in its messages.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/chat/tool_call_syntax.h"
#include "common/grammar/bare_arguments.h"
#include "common/grammar/grammar.h"
#include "common/grammar/schema_check.h"
#include "common/json/json.h"
#include "router/http/json_readers.h"
#include "router/http/openai_request.h"

namespace baton::router {
namespace {

constexpr size_t kMaxToolNameBytes = 256;

// Returns the field `function`, which must have a name, of an object of type "function". Drops the
// nulls of both.
absl::StatusOr<Value*> FunctionOf(const std::string& name, Value& value) {
  DropNulls(value);
  if (const Value* type = value.Find("type")) {
    BATON_ASSIGN_OR_RETURN(const std::string text, Text(name + ".type", *type));
    if (text != "function") return Unsupported(name + ".type", "only \"function\" is supported");
  }
  const auto found = absl::c_find(value.keys, "function");
  if (found == value.keys.end() || !IsObject(value.items[found - value.keys.begin()])) {
    return WrongType(name, "an object with an object \"function\"");
  }
  Value* const function = &value.items[found - value.keys.begin()];
  DropNulls(*function);
  const std::string field = name + ".function.name";
  const Value* function_name = function->Find("name");
  if (function_name == nullptr) return InvalidField("MISSING_FIELD", field, "required");
  BATON_ASSIGN_OR_RETURN(const std::string text, Text(field, *function_name));
  if (text.empty() || text.size() > kMaxToolNameBytes) {
    return OutOfRange(field, absl::StrCat(text.size(), " bytes"),
                      absl::StrCat("1 to ", kMaxToolNameBytes, " expected"));
  }
  return function;
}

// The name that an error has for the index-th of conversation.tools.
std::string ToolAt(const OpenAiRequest& request, absl::string_view field, size_t index) {
  const std::vector<std::string>& places = request.tool_places;
  return places.empty() ? absl::StrCat(field, "[", index, "]") : places[index];
}

// REQUIRES: ReadTools has accepted the tool.
const std::string& NameOf(const Value& tool) {
  return tool.Find("function")->Find("name")->scalar.text;
}

bool IsStrict(const Value& tool) {
  const Value* const strict = tool.Find("function")->Find("strict");
  return strict != nullptr && strict->scalar.boolean;
}

grammar::ArgumentStyle StyleOf(const chat::ToolCallSyntax& syntax) {
  return static_cast<grammar::ArgumentStyle>(syntax.argument_style);
}

absl::Status AddTool(const std::string& at, const Value& tool, const CallConstraints& constraints,
                     v1::StructuredOutput::ToolCalls& calls) {
  const chat::ToolCallSyntax& syntax = *constraints.syntax;
  std::optional<std::string> name = chat::WrittenName(syntax, NameOf(tool));
  if (!name) {
    return Unsupported(at + ".name",
                       "the model's calls have names of letters, digits, '_', '-', '.' and ':'");
  }
  if (absl::c_any_of(calls.tools(), [&](const auto& other) { return other.name() == *name; })) {
    return InvalidField("SCHEMA_INVALID", at + ".name", "another tool has the same name");
  }
  // A function without parameters takes none.
  const Value* const parameters = tool.Find("function")->Find("parameters");
  std::string schema = R"({"type":"object","properties":{}})";
  if (parameters != nullptr) {
    const bool is_any = IsObject(*parameters) && parameters->keys.empty();
    schema = is_any ? "" : json::ToText(*parameters);
  }
  const absl::Status supported = grammar::CheckArguments(
      schema, StyleOf(syntax), at + ".parameters",
      /*constrains_text=*/constraints.level >= internal::v1::GRAMMAR_LEVEL_MESSAGES);
  const bool is_beyond = ErrorReason(supported) == "SCHEMA_UNSUPPORTED" ||
                         ErrorReason(supported) == "SCHEMA_TOO_COMPLEX";
  if (!supported.ok() && (IsStrict(tool) || !is_beyond)) return supported;
  auto& added = *calls.add_tools();
  added.set_name(*std::move(name));
  if (supported.ok()) added.set_parameters(std::move(schema));
  return absl::OkStatus();
}

// The schema of a JSON answer that is asked for beside tools; empty without.
std::string AnswerSchema(const v1::GenerateRequest& request) {
  const v1::StructuredOutput& asked = request.structured_output();
  if (asked.has_json_object()) return R"({"type":"object","additionalProperties":true})";
  return asked.json_schema();
}

}  // namespace

absl::Status ReadTools(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsArray(value)) return WrongType(name, "an array of tools");
  if (value.items.size() > grammar::kMaxTools) {
    return OutOfRange(name, absl::StrCat(value.items.size(), " tools"),
                      absl::StrCat("at most ", grammar::kMaxTools, " expected"));
  }
  Value tools = value;
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const std::string at = ToolAt(request, name, i);
    BATON_ASSIGN_OR_RETURN(const Value* function, FunctionOf(at, tools.items[i]));
    if (const Value* strict = function->Find("strict")) {
      BATON_RETURN_IF_ERROR(Bool(at + ".function.strict", *strict).status());
    }
  }
  // An empty list asks for no tools, as an absent one.
  if (!tools.items.empty()) request.conversation.tools = std::move(tools);
  return absl::OkStatus();
}

absl::Status ReadToolChoice(absl::string_view name, const Value& value, OpenAiRequest& request) {
  const bool is_text = IsScalar(value, Scalar::Kind::kString);
  if (!is_text && !IsObject(value)) return WrongType(name, "a string or an object");
  if (is_text && value.scalar.text == "auto") return absl::OkStatus();
  if (is_text && value.scalar.text == "none") {
    request.may_call_tools = false;
    return absl::OkStatus();
  }
  if (is_text && value.scalar.text == "required") {
    request.requires_call = true;
    return absl::OkStatus();
  }
  if (is_text) {
    return Unsupported(name, "\"auto\", \"none\", \"required\" or a function expected");
  }
  Value choice = value;
  const std::string field(name);
  BATON_ASSIGN_OR_RETURN(const Value* function, FunctionOf(field, choice));
  BATON_RETURN_IF_ERROR(CheckMembers(field, choice, {"type", "function"}));
  BATON_RETURN_IF_ERROR(CheckMembers(field + ".function", *function, {"name"}));
  request.required_tool = function->Find("name")->scalar.text;
  return absl::OkStatus();
}

absl::Status ForceTools(const CallConstraints& constraints, OpenAiRequest& request) {
  const chat::ToolCallSyntax* const syntax = constraints.syntax;
  const std::vector<Value>& tools = request.conversation.tools.items;
  const bool is_named = !request.required_tool.empty();
  const bool is_required = is_named || request.requires_call;
  const auto first_strict = absl::c_find_if(tools, IsStrict);
  const bool is_answered = request.generate.has_structured_output() && !tools.empty();
  if (!is_required && !is_answered && first_strict == tools.end()) return absl::OkStatus();
  const auto first = static_cast<size_t>(first_strict - tools.begin());
  const std::string field = is_required ? "tool_choice"
                            : first == tools.size()
                                ? "tools"
                                : ToolAt(request, "tools", first) + ".function.strict";
  if (tools.empty()) {
    return InvalidField("MISSING_FIELD", "tools",
                        "required beside a tool_choice that forces a call");
  }
  if (is_named && absl::c_none_of(tools, [&](const Value& tool) {
        return NameOf(tool) == request.required_tool;
      })) {
    return OutOfRange("tool_choice.function.name", json::Quoted(request.required_tool),
                      "the name of one of the tools expected");
  }
  const bool has_messages = syntax != nullptr && !syntax->before_answer.empty();
  const bool knows_messages =
      constraints.level >= internal::v1::GRAMMAR_LEVEL_MESSAGES && constraints.parts_messages;
  const bool is_known = syntax != nullptr && (is_required || !has_messages || knows_messages);
  if (!is_known && !is_required) {
    // Agents ask for strict tools by default, and are right with calls that are not forced.
    if (first_strict != tools.end()) request.ignored.emplace_back("strict");
    return absl::OkStatus();
  }
  if (syntax == nullptr) {
    return Unsupported(field,
                       "calls are not forced: the model's chat template writes them in a way that "
                       "this server does not know");
  }
  // Where a call is required there is no text, which is what response_format is about.
  const std::string answer_schema = is_required ? "" : AnswerSchema(request.generate);
  if (request.generate.has_structured_output() && !is_required && answer_schema.empty()) {
    if (first_strict == tools.end()) return absl::OkStatus();
    return InvalidField("NOT_WITH_STRUCTURED_OUTPUT", field,
                        "an expression or choices constrain the answer, so it has no calls");
  }
  if (!answer_schema.empty()) {
    BATON_RETURN_IF_ERROR(grammar::NormalSchema(answer_schema).status());
  }
  v1::StructuredOutput::ToolCalls calls;
  for (size_t i = 0; i < tools.size(); ++i) {
    if (is_named && NameOf(tools[i]) != request.required_tool) continue;
    const absl::Status added =
        AddTool(ToolAt(request, "tools", i) + ".function", tools[i], constraints, calls);
    // Nothing asks for a call of a tool that cannot be forced: the answer is JSON.
    if (!added.ok() && !is_required && first == tools.size()) return absl::OkStatus();
    if (!added.ok()) return added;
  }
  calls.set_opening(std::string(syntax->opening));
  calls.set_before_name(std::string(syntax->before_name));
  calls.set_before_arguments(std::string(syntax->before_arguments));
  calls.set_after_arguments(std::string(syntax->after_arguments));
  calls.set_separator(std::string(syntax->separator));
  calls.set_closing(std::string(syntax->closing));
  calls.set_argument_style(StyleOf(*syntax));
  calls.set_required(is_required);
  // A named function is called once, as OpenAI's API does.
  calls.set_single(is_named || !request.parallel_tool_calls || has_messages);
  calls.set_answer_schema(answer_schema);
  if (!is_required && (answer_schema.empty() || has_messages)) {
    calls.set_trigger(std::string(syntax->trigger));
    for (const absl::string_view text : syntax->excluded) calls.add_excluded(std::string(text));
  }
  if (!is_required && has_messages) {
    calls.set_before_answer(std::string(syntax->before_answer));
    calls.set_after_message(std::string(syntax->after_message));
    calls.add_before_message(std::string(syntax->before_thought));
    // A client that asks for JSON reads all of the content as JSON.
    if (answer_schema.empty()) calls.add_before_message(std::string(syntax->before_preamble));
  }
  *request.generate.mutable_structured_output()->mutable_tool_calls() = std::move(calls);
  return absl::OkStatus();
}

std::shared_ptr<const Value> KeepToolsOfAnswer(chat::ToolCallFormat format,
                                               OpenAiRequest& request) {
  const bool has_parameters =
      format == chat::ToolCallFormat::kQwenXml || format == chat::ToolCallFormat::kGlm;
  Value kept = json::ArrayValue();
  for (const Value& tool : request.conversation.tools.items) {
    Value function = json::ObjectValue();
    json::AddMember("name", json::TextValue(NameOf(tool)), &function);
    const Value* const parameters = tool.Find("function")->Find("parameters");
    if (has_parameters && parameters != nullptr) {
      json::AddMember("parameters", *parameters, &function);
    }
    Value one = json::ObjectValue();
    json::AddMember("function", std::move(function), &one);
    kept.items.push_back(std::move(one));
  }
  request.json_bytes -= static_cast<int64_t>(sizeof(Value)) * json::CountValues(kept);
  return std::make_shared<const Value>(std::move(kept));
}

absl::Status ReadToolCalls(const std::string& name, Value& value) {
  if (!IsArray(value)) return WrongType(name, "an array of calls");
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string at = absl::StrCat(name, "[", i, "]");
    BATON_ASSIGN_OR_RETURN(const Value* function, FunctionOf(at, value.items[i]));
    BATON_RETURN_IF_ERROR(CheckMembers(at, value.items[i], {"id", "type", "index", "function"}));
    BATON_RETURN_IF_ERROR(CheckMembers(at + ".function", *function, {"name", "arguments"}));
    if (const Value* id = value.items[i].Find("id")) {
      BATON_RETURN_IF_ERROR(Text(at + ".id", *id).status());
    }
    if (const Value* index = value.items[i].Find("index")) {
      BATON_RETURN_IF_ERROR(Int32(at + ".index", *index).status());
    }
    const Value* arguments = function->Find("arguments");
    if (arguments == nullptr) {
      return InvalidField("MISSING_FIELD", at + ".function.arguments", "required");
    }
    if (!IsScalar(*arguments, Scalar::Kind::kString) && !IsObject(*arguments)) {
      return WrongType(at + ".function.arguments", "a string with a JSON object");
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::router
