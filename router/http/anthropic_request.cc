#include "router/http/anthropic_request.h"

#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/security/digest.h"
#include "router/http/body_reader.h"
#include "router/http/json_readers.h"

namespace baton::router {
namespace {

// An error of a field of OpenAI's API, with the name that Anthropic's has for it.
absl::Status RenamedForAnthropic(const absl::Status& error) {
  const std::string field = ErrorField(error);
  if (error.ok() || field.empty()) return error;
  const std::string name =
      absl::StrReplaceAll(field, {{".function.parameters", ".input_schema"}, {".function", ""}});
  absl::string_view message = error.message();
  if (name == field || !absl::ConsumePrefix(&message, field)) return error;
  return WithDetails(absl::Status(error.code(), absl::StrCat(name, message)), ErrorReason(error),
                     name, ErrorRetryAfter(error));
}

// --- Sampling and stop conditions.

absl::Status ReadAnthropicModel(const std::string& name, Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(*request.generate.mutable_model(), Text(name, value));
  return absl::OkStatus();
}

absl::Status ReadMaxTokens(const std::string& name, Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int32_t tokens, Int32(name, value));
  if (tokens < 1) return OutOfRange(name, absl::StrCat(tokens), "1 or more expected");
  request.generate.mutable_stop()->set_max_tokens(tokens);
  return absl::OkStatus();
}

template <void (v1::SamplingParams::*kSet)(float)>
absl::Status ReadAnthropicNumber(const std::string& name, Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const float number, Number(name, value));
  (request.generate.mutable_sampling()->*kSet)(number);
  return absl::OkStatus();
}

absl::Status ReadAnthropicTopK(const std::string& name, Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int32_t top_k, Int32(name, value));
  request.generate.mutable_sampling()->set_top_k(top_k);
  return absl::OkStatus();
}

absl::Status ReadStopSequences(const std::string& name, Value& value, OpenAiRequest& request) {
  if (!IsArray(value)) return WrongType(name, "an array of strings");
  for (const Value& item : value.items) {
    BATON_ASSIGN_OR_RETURN(*request.generate.mutable_stop()->add_stop(), Text(name, item));
  }
  return absl::OkStatus();
}

absl::Status ReadAnthropicStream(const std::string& name, Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.stream, Bool(name, value));
  return absl::OkStatus();
}

// --- Tools.

constexpr absl::string_view kToolMembers[] = {
    "type",   "name",          "description",           "input_schema",   "cache_control",
    "strict", "defer_loading", "eager_input_streaming", "input_examples", "allowed_callers"};

// Who may call a tool: only the model itself.
absl::Status CheckCallers(const std::string& at, const Value& tool) {
  const Value* callers = FindSet(tool, "allowed_callers");
  if (callers == nullptr) return absl::OkStatus();
  const std::string field = at + ".allowed_callers";
  if (!IsArray(*callers)) return WrongType(field, "an array of strings");
  for (const Value& caller : callers->items) {
    BATON_ASSIGN_OR_RETURN(const std::string text, Text(field, caller));
    if (text != "direct") return Unsupported(field, "only \"direct\" is supported");
  }
  return absl::OkStatus();
}

// Makes a tool one of OpenAI's.
absl::Status ReadTool(const std::string& at, Value& tool, OpenAiRequest& request) {
  if (!IsObject(tool)) return WrongType(at, "an object with a name and an input_schema");
  if (const Value* type = FindSet(tool, "type")) {
    BATON_ASSIGN_OR_RETURN(const std::string text, Text(at + ".type", *type));
    if (text != "custom") {
      return Unsupported(at + ".type", absl::StrCat(json::Quoted(text),
                                                    " given, only \"custom\" is supported: this "
                                                    "server defines and runs no tools"));
    }
  }
  BATON_RETURN_IF_ERROR(CheckMembers(at, tool, kToolMembers));
  BATON_RETURN_IF_ERROR(CheckCacheControl(at, tool, request));
  BATON_RETURN_IF_ERROR(CheckCallers(at, tool));
  Value function;
  const auto move_member = [&](absl::string_view key, const char* as) {
    const auto found = absl::c_find(tool.keys, key);
    if (found == tool.keys.end()) return;
    Value& value = tool.items[found - tool.keys.begin()];
    if (!value.is_null()) json::AddMember(as, std::move(value), &function);
  };
  for (const char* key : {"strict", "defer_loading", "eager_input_streaming"}) {
    const Value* given = FindSet(tool, key);
    if (given == nullptr) continue;
    const std::string field = absl::StrCat(at, ".", key);
    BATON_ASSIGN_OR_RETURN(const bool on, Bool(field, *given));
    if (on && key == absl::string_view("defer_loading")) {
      return Unsupported(field, "the prompt has all tools");
    }
    if (on && key == absl::string_view("eager_input_streaming")) IgnoreField(key, request);
  }
  if (FindSet(tool, "input_examples") != nullptr) IgnoreField("input_examples", request);
  if (const Value* text = FindSet(tool, "description")) {
    BATON_RETURN_IF_ERROR(Text(at + ".description", *text).status());
  }
  const Value* schema = FindSet(tool, "input_schema");
  if (schema == nullptr) return InvalidField("MISSING_FIELD", at + ".input_schema", "required");
  if (!IsObject(*schema)) return WrongType(at + ".input_schema", "an object");
  const Value* strict = FindSet(tool, "strict");
  const bool is_strict = strict != nullptr && strict->scalar.boolean;
  move_member("name", "name");
  move_member("description", "description");
  move_member("input_schema", "parameters");
  // False is what an absent one means; a template may write all members.
  if (is_strict) json::AddMember("strict", json::BoolValue(true), &function);
  Value translated;
  json::AddMember("type", json::TextValue("function"), &translated);
  json::AddMember("function", std::move(function), &translated);
  tool = std::move(translated);
  return absl::OkStatus();
}

absl::Status ReadAnthropicTools(const std::string& name, Value& value, OpenAiRequest& request) {
  if (!IsArray(value)) return WrongType(name, "an array of tools");
  for (size_t i = 0; i < value.items.size(); ++i) {
    BATON_RETURN_IF_ERROR(ReadTool(absl::StrCat(name, "[", i, "]"), value.items[i], request));
  }
  return RenamedForAnthropic(ReadTools(name, value, request));
}

absl::Status ReadAnthropicToolChoice(const std::string& name, Value& value,
                                     OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const std::string kind, TypeMember(name, value));
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"type", "name", "disable_parallel_tool_use"}));
  if (const Value* disable = FindSet(value, "disable_parallel_tool_use")) {
    BATON_ASSIGN_OR_RETURN(const bool on, Bool(name + ".disable_parallel_tool_use", *disable));
    request.parallel_tool_calls = !on;
  }
  const Value* tool = FindSet(value, "name");
  if ((kind == "tool") != (tool != nullptr)) {
    return tool == nullptr ? InvalidField("MISSING_FIELD", name + ".name", "required")
                           : Unsupported(name + ".name", "only with \"type\": \"tool\"");
  }
  if (kind == "tool") {
    BATON_ASSIGN_OR_RETURN(std::string tool_name, Text(name + ".name", *tool));
    Value function, choice;
    json::AddMember("name", json::TextValue(std::move(tool_name)), &function);
    json::AddMember("type", json::TextValue("function"), &choice);
    json::AddMember("function", std::move(function), &choice);
    return RenamedForAnthropic(ReadToolChoice(name, choice, request));
  }
  if (kind != "auto" && kind != "any" && kind != "none") {
    return Unsupported(name + ".type", "\"auto\", \"any\", \"tool\" or \"none\" expected");
  }
  return RenamedForAnthropic(
      ReadToolChoice(name, json::TextValue(kind == "any" ? "required" : kind), request));
}

// --- Thinking and the form of the answer.

// The names that chat templates have for the switch; a template without one does not read it.
constexpr absl::string_view kThinkingVariables[] = {"enable_thinking", "thinking"};

absl::Status ReadThinking(const std::string& name, Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const std::string kind, TypeMember(name, value));
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"type", "budget_tokens", "display"}));
  if (kind != "enabled" && kind != "disabled" && kind != "adaptive") {
    return Unsupported(name + ".type", "\"enabled\", \"disabled\" or \"adaptive\" expected");
  }
  if (const Value* budget = FindSet(value, "budget_tokens")) {
    BATON_RETURN_IF_ERROR(Int32(name + ".budget_tokens", *budget).status());
    IgnoreField("thinking.budget_tokens", request);
  }
  if (const Value* display = FindSet(value, "display")) {
    BATON_ASSIGN_OR_RETURN(const std::string shown, Text(name + ".display", *display));
    if (shown != "summarized") IgnoreField("thinking.display", request);
  }
  for (const absl::string_view variable : kThinkingVariables) {
    json::AddMember(std::string(variable), json::BoolValue(kind != "disabled"),
                    &request.conversation.variables);
  }
  return absl::OkStatus();
}

// {"type": "json_schema", "schema"}
absl::Status ReadOutputFormat(const std::string& name, Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const std::string kind, TypeMember(name, value));
  if (kind != "json_schema") return Unsupported(name + ".type", "\"json_schema\" expected");
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"type", "schema"}));
  const Value* schema = FindSet(value, "schema");
  if (schema == nullptr || !IsObject(*schema)) return WrongType(name + ".schema", "an object");
  request.generate.mutable_structured_output()->set_json_schema(json::ToText(*schema));
  return absl::OkStatus();
}

absl::Status ReadOutputConfig(const std::string& name, Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"effort", "format"}));
  if (const Value* effort = FindSet(value, "effort")) {
    BATON_RETURN_IF_ERROR(Text(name + ".effort", *effort).status());
    IgnoreField("output_config.effort", request);
  }
  if (FindSet(value, "format") == nullptr) return absl::OkStatus();
  Value& format = value.items[absl::c_find(value.keys, "format") - value.keys.begin()];
  return ReadOutputFormat(name + ".format", format, request);
}

// --- Who asks, and how it is served.

// Without API keys the user is the tenant. An id that is no tenant's name, as the long ones of
// Claude Code, is one by its digest.
absl::Status ReadAnthropicMetadata(const std::string& name, Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"user_id"}));
  const Value* user = FindSet(value, "user_id");
  if (user == nullptr) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::string id, Text(name + ".user_id", *user));
  request.generate.set_tenant(CheckTenant(id).ok() ? id : security::ToHex(security::Sha256(id)));
  return absl::OkStatus();
}

absl::Status ReadTier(const std::string& name, Value& value, OpenAiRequest&) {
  BATON_ASSIGN_OR_RETURN(const std::string tier, Text(name, value));
  if (tier == "auto" || tier == "standard_only") return absl::OkStatus();
  return Unsupported(name, "only \"auto\" and \"standard_only\" are supported: there is one tier");
}

absl::Status ReadSpeed(const std::string& name, Value& value, OpenAiRequest&) {
  BATON_ASSIGN_OR_RETURN(const std::string speed, Text(name, value));
  if (speed == "standard") return absl::OkStatus();
  return Unsupported(name, "only \"standard\" is supported: there is one speed");
}

absl::Status ReadSpeculation(const std::string& name, Value& value, OpenAiRequest& request) {
  return ReadChatField(name, value, request);
}

absl::Status ReadCacheControl(const std::string& name, Value& value, OpenAiRequest& request) {
  Value body;
  json::AddMember(name, std::move(value), &body);
  return CheckCacheControl("", body, request);
}

absl::Status ReadBetas(const std::string& name, Value& value, OpenAiRequest& request) {
  if (!IsArray(value)) return WrongType(name, "an array of strings");
  for (const Value& item : value.items) BATON_RETURN_IF_ERROR(Text(name, item).status());
  IgnoreField("betas", request);
  return absl::OkStatus();
}

// What these ask for, the answer is right without: that some messages be left out of the prompt, or
// that the answer describe the cache.
template <const char* kName>
absl::Status IgnoreObject(const std::string& name, Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  IgnoreField(kName, request);
  return absl::OkStatus();
}
constexpr char kContextManagement[] = "context_management";
constexpr char kDiagnostics[] = "diagnostics";

absl::Status ReadServers(const std::string& name, Value& value, OpenAiRequest&) {
  if (IsArray(value) && value.items.empty()) return absl::OkStatus();
  return Unsupported(name, "this server calls no other servers");
}

absl::Status RefuseAnthropic(const std::string& name, Value&, OpenAiRequest&) {
  return Unsupported(name, "this server does not support the field");
}

// Clients send it of their own accord, and go on without it once it is refused: AnthropicErrorJson.
absl::Status RefuseThread(const std::string& name, Value&, OpenAiRequest&) {
  return Unsupported(name, "this server keeps no conversation; each request has the whole one");
}

// Fields are read in this order: tools before what is said of them, the system's text before the
// messages.
struct BodyField {
  absl::string_view name;
  bool of_count;  // a request that counts tokens has it, too
  absl::Status (*read)(const std::string& name, Value& value, OpenAiRequest& request);
};
constexpr BodyField kBodyFields[] = {
    {"model", true, ReadAnthropicModel},
    {"max_tokens", false, ReadMaxTokens},
    {"temperature", false, ReadAnthropicNumber<&v1::SamplingParams::set_temperature>},
    {"top_p", false, ReadAnthropicNumber<&v1::SamplingParams::set_top_p>},
    {"top_k", false, ReadAnthropicTopK},
    {"stop_sequences", false, ReadStopSequences},
    {"stream", false, ReadAnthropicStream},
    {"tools", true, ReadAnthropicTools},
    {"tool_choice", true, ReadAnthropicToolChoice},
    {"thinking", true, ReadThinking},
    {"output_config", true, ReadOutputConfig},
    {"output_format", true, ReadOutputFormat},  // an older name of output_config.format
    {"metadata", false, ReadAnthropicMetadata},
    {"service_tier", false, ReadTier},
    {"speed", true, ReadSpeed},
    {"cache_control", true, ReadCacheControl},
    {"betas", true, ReadBetas},
    {"context_management", true, IgnoreObject<kContextManagement>},
    {"diagnostics", false, IgnoreObject<kDiagnostics>},
    {"mcp_servers", true, ReadServers},
    {"thread", true, RefuseThread},
    {"container", false, RefuseAnthropic},
    {"inference_geo", false, RefuseAnthropic},
    {"speculation", false, ReadSpeculation},  // Baton's own
    {"system", true, ReadAnthropicSystem},
    {"messages", true, ReadAnthropicMessages},
};

absl::StatusOr<OpenAiRequest> ParseBodyOf(absl::string_view body, bool count) {
  const auto is_field = [&](absl::string_view name) {
    return absl::c_any_of(kBodyFields, [&](const BodyField& field) {
      return field.name == name && (field.of_count || !count);
    });
  };
  BodyReader reader(is_field, {"prompt", kMaxPrompts});
  const absl::Status read = json::Visit(body, "the request's body", reader);
  BATON_RETURN_IF_ERROR(reader.status());
  if (!read.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_JSON", read.message());
  }
  OpenAiRequest request;
  request.json_bytes = static_cast<int64_t>(2 * reader.values() * sizeof(Value));
  Value document = reader.TakeDocument();
  for (const BodyField& field : kBodyFields) {
    const auto found = absl::c_find(document.keys, field.name);
    if (found == document.keys.end()) continue;
    Value& value = document.items[found - document.keys.begin()];
    if (value.is_null()) continue;
    BATON_RETURN_IF_ERROR(field.read(std::string(field.name), value, request));
  }
  if (FindSet(document, "messages") == nullptr) {
    return InvalidField("MISSING_FIELD", "messages", "required");
  }
  if (!request.may_call_tools) request.conversation.tools = Value();
  request.generate.set_add_special_tokens(false);  // the template has written them
  return request;
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseAnthropic(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(OpenAiRequest request, ParseBodyOf(body, /*count=*/false));
  if (!request.generate.stop().has_max_tokens()) {
    return InvalidField("MISSING_FIELD", "max_tokens", "required");
  }
  if (!request.conversation.add_generation_prompt) {
    return Unsupported("messages",
                       "the last message is the assistant's; this server does not continue it");
  }
  return request;
}

absl::StatusOr<OpenAiRequest> ParseAnthropicCount(absl::string_view body) {
  return ParseBodyOf(body, /*count=*/true);
}

}  // namespace baton::router
