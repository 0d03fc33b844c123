#include "router/http/responses_request.h"

#include <iterator>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "router/http/body_reader.h"
#include "router/http/json_readers.h"
#include "router/http/openai_hints.h"
#include "router/http/openai_response_format.h"
#include "router/http/reasoning_effort.h"
#include "router/http/responses_items.h"

namespace baton::router {
namespace {

struct Draft {
  OpenAiRequest request;
  ResponsesRequest responses;
  ChatMessages input;
  Value instructions;  // a text, or null
};

absl::Status Renamed(const absl::Status& error, absl::string_view field) {
  const std::string prefix = absl::StrCat(ErrorField(error), ": ");
  absl::string_view rest = error.message();
  const bool named = absl::ConsumePrefix(&rest, prefix);
  absl::Status renamed(error.code(), named ? absl::StrCat(field, ": ", rest) : std::string(rest));
  error.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { renamed.SetPayload(url, payload); });
  return WithDetails(renamed, "", field, /*retry_after=*/std::nullopt);
}

// Names of a chat's field that lack `part` in this API.
absl::Status WithoutPart(const absl::Status& error, absl::string_view part) {
  if (error.ok()) return error;
  return Renamed(error, absl::StrReplaceAll(ErrorField(error), {{part, ""}}));
}

absl::Status ReadAsChat(absl::string_view name, const Value& value, Draft& draft) {
  return ReadChatField(name, value, draft.request);
}

absl::Status ReadInput(absl::string_view name, const Value& value, Draft& draft) {
  return ReadItems(name, value, draft.input, draft.request.ignored);
}

absl::Status ReadInstructions(absl::string_view name, const Value& value, Draft& draft) {
  BATON_RETURN_IF_ERROR(Text(name, value).status());
  draft.instructions = value;
  return absl::OkStatus();
}

absl::Status ReadPreviousId(absl::string_view name, const Value& value, Draft& draft) {
  BATON_ASSIGN_OR_RETURN(draft.responses.previous_response_id, Text(name, value));
  if (!draft.responses.previous_response_id.empty()) return absl::OkStatus();
  return WrongType(name, "the id of a response");
}

absl::Status ReadStored(absl::string_view name, const Value& value, Draft& draft) {
  BATON_ASSIGN_OR_RETURN(draft.responses.store, Bool(name, value));
  return absl::OkStatus();
}

absl::Status ReadBackground(absl::string_view name, const Value& value, Draft&) {
  BATON_ASSIGN_OR_RETURN(const bool background, Bool(name, value));
  if (!background) return absl::OkStatus();
  return Unsupported(name, "an answer lasts as long as its connection: use stream");
}

// The response repeats it.
absl::Status ReadEchoedMetadata(absl::string_view name, const Value& value, Draft& draft) {
  OpenAiRequest read;
  return ReadMetadata(name, value, read);
}

absl::Status ReadMaxOutputTokens(absl::string_view name, const Value& value, Draft& draft) {
  BATON_ASSIGN_OR_RETURN(const int32_t tokens, Int32(name, value));
  if (tokens < 1) return OutOfRange(name, absl::StrCat(tokens), "1 or more expected");
  draft.request.max_completion_tokens = tokens;
  return absl::OkStatus();
}

// Ids of an agent's session, which it sends for its own server's records.
absl::Status ReadClientMetadata(absl::string_view name, const Value& value, Draft& draft) {
  if (!IsObject(value)) return WrongType(name, "an object");
  draft.request.ignored.emplace_back(name);
  return absl::OkStatus();
}

// Counts calls of tools that the server runs itself, of which there are none.
absl::Status ReadMaxToolCalls(absl::string_view name, const Value& value, Draft& draft) {
  BATON_RETURN_IF_ERROR(Int32(name, value).status());
  draft.request.ignored.emplace_back(name);
  return absl::OkStatus();
}

absl::Status ReadStreamOptions(absl::string_view name, const Value& value, Draft& draft) {
  if (!IsObject(value)) return WrongType(name, "an object");
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"include_obfuscation"}));
  const Value* pad = FindSet(value, "include_obfuscation");
  if (pad == nullptr) return absl::OkStatus();
  const std::string field = absl::StrCat(name, ".include_obfuscation");
  BATON_ASSIGN_OR_RETURN(const bool pads, Bool(field, *pad));
  if (pads) draft.request.ignored.push_back(field);
  return absl::OkStatus();
}

absl::Status ReadInclude(absl::string_view name, const Value& value, Draft& draft) {
  if (!IsArray(value)) return WrongType(name, "an array of texts");
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string at = absl::StrCat(name, "[", i, "]");
    BATON_ASSIGN_OR_RETURN(const std::string what, Text(at, value.items[i]));
    if (what == "message.output_text.logprobs") {
      draft.request.wants_logprobs = true;
    } else if (what == "reasoning.encrypted_content") {
      draft.request.ignored.push_back(what);  // reasoning is text
    } else {
      return Unsupported(at,
                         "only \"message.output_text.logprobs\" and "
                         "\"reasoning.encrypted_content\" are supported");
    }
  }
  return absl::OkStatus();
}

// "auto" drops old messages, as the object of chats does, which is accepted too.
absl::Status ReadResponsesTruncation(absl::string_view name, const Value& value, Draft& draft) {
  if (IsObject(value)) return ReadChatField(name, value, draft.request);
  BATON_ASSIGN_OR_RETURN(const std::string kind, Text(name, value));
  if (kind == "auto") draft.request.generate.mutable_truncation();
  if (kind == "auto" || kind == "disabled") return absl::OkStatus();
  return Unsupported(name, "\"auto\", \"disabled\" or an object expected");
}

absl::Status ReadReasoning(absl::string_view name, const Value& value, Draft& draft) {
  if (!IsObject(value)) return WrongType(name, "an object");
  BATON_RETURN_IF_ERROR(
      CheckMembers(name, value, {"effort", "summary", "generate_summary", "context", "mode"}));
  for (size_t i = 0; i < value.keys.size(); ++i) {
    if (value.items[i].is_null()) continue;
    const std::string field = absl::StrCat(name, ".", value.keys[i]);
    if (value.keys[i] == "effort") {
      BATON_RETURN_IF_ERROR(ReadReasoningEffort(field, value.items[i], draft.request));
      continue;
    }
    BATON_RETURN_IF_ERROR(Text(field, value.items[i]).status());
    draft.request.ignored.push_back(field);
  }
  return absl::OkStatus();
}

// Chat has what is beside `type` within a member `json_schema`.
absl::Status ReadFormat(const std::string& name, const Value& format, OpenAiRequest& request) {
  const Value* type = FindSet(format, "type");
  if (type == nullptr || !IsScalar(*type, Scalar::Kind::kString) ||
      type->scalar.text != "json_schema") {
    return ReadResponseFormat(name, format, request);
  }
  Value schema = format;
  const auto at = absl::c_find(schema.keys, "type") - schema.keys.begin();
  schema.keys.erase(schema.keys.begin() + at);
  schema.items.erase(schema.items.begin() + at);
  Value nested;
  json::AddMember("type", *type, &nested);
  json::AddMember("json_schema", std::move(schema), &nested);
  return WithoutPart(ReadResponseFormat(name, nested, request), ".json_schema");
}

absl::Status ReadText(absl::string_view name, const Value& value, Draft& draft) {
  if (!IsObject(value)) return WrongType(name, "an object");
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"format", "verbosity"}));
  if (const Value* verbosity = FindSet(value, "verbosity")) {
    const std::string field = absl::StrCat(name, ".verbosity");
    BATON_RETURN_IF_ERROR(Text(field, *verbosity).status());
    draft.request.ignored.push_back(field);
  }
  const Value* format = FindSet(value, "format");
  if (format == nullptr) return absl::OkStatus();
  return ReadFormat(absl::StrCat(name, ".format"), *format, draft.request);
}

// Chat has what is beside `type` within a member `function`.
absl::StatusOr<Value> ChatFunction(const std::string& at, const Value& value,
                                   std::initializer_list<absl::string_view> members) {
  if (!IsObject(value)) return WrongType(at, "an object with a type");
  const Value* type = FindSet(value, "type");
  if (type == nullptr) return InvalidField("MISSING_FIELD", at + ".type", "required");
  BATON_ASSIGN_OR_RETURN(const std::string kind, Text(at + ".type", *type));
  if (kind != "function") {
    return Unsupported(at + ".type", absl::StrCat(json::Quoted(kind),
                                                  " given, only \"function\" is supported: "
                                                  "the server runs no tools itself"));
  }
  BATON_RETURN_IF_ERROR(CheckMembers(at, value, {members.begin(), members.size()}));
  Value function = json::ObjectValue();
  for (size_t i = 0; i < value.keys.size(); ++i) {
    const std::string& key = value.keys[i];
    const bool is_hint = key == "type" || key == "defer_loading" || key == "output_schema";
    if (is_hint || value.items[i].is_null()) continue;
    json::AddMember(key, value.items[i], &function);
  }
  Value nested;
  json::AddMember("type", json::TextValue("function"), &nested);
  json::AddMember("function", std::move(function), &nested);
  return nested;
}

// Tools that Codex offers to every model unasked, beside the functions with which it does its work.
// The model is not shown them, so it answers as one that calls none of them.
constexpr absl::string_view kUnasked[] = {"custom",      "image_generation", "local_shell",
                                          "tool_search", "web_search",       "web_search_preview"};

// The tool's type; empty if it has none, which ChatFunction refuses.
absl::string_view TypeOf(const Value& tool) {
  const Value* type = IsObject(tool) ? FindSet(tool, "type") : nullptr;
  const bool is_text = type != nullptr && IsScalar(*type, Scalar::Kind::kString);
  return is_text ? absl::string_view(type->scalar.text) : "";
}

// Adds a tool of the request to `tools`, unless it is left out. `name_space`: empty, or that of the
// function, whose name the model reads and writes qualified by it.
absl::Status AddFlatTool(const std::string& at, const std::string& name_space, const Value& tool,
                         Draft& draft, Value& tools) {
  std::vector<std::string>& ignored = draft.request.ignored;
  if (absl::c_linear_search(kUnasked, TypeOf(tool))) {
    IgnoreOnce(absl::StrCat("tools.", TypeOf(tool)), ignored);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(Value nested, ChatFunction(at, tool,
                                                    {"type", "name", "description", "parameters",
                                                     "strict", "defer_loading", "output_schema"}));
  // The prompt has all functions from its beginning, and their parameters alone.
  if (const Value* defers = FindSet(tool, "defer_loading")) {
    BATON_ASSIGN_OR_RETURN(const bool on, Bool(at + ".defer_loading", *defers));
    if (on) IgnoreOnce("tools.defer_loading", ignored);
  }
  if (FindSet(tool, "output_schema") != nullptr) IgnoreOnce("tools.output_schema", ignored);
  if (!name_space.empty()) {
    BATON_ASSIGN_OR_RETURN(const std::string name, RequiredText(at, tool, "name"));
    if (name.empty()) return WrongType(at + ".name", "the name of a function");
    const std::string qualified = QualifiedName(name_space, name);
    auto& names = draft.responses.namespaced;
    if (!names.emplace(qualified, NamespacedName{name_space, name}).second) {
      return InvalidField("SCHEMA_INVALID", at + ".name", "another tool has the same name");
    }
    Value& function = nested.items[absl::c_find(nested.keys, "function") - nested.keys.begin()];
    function.items[absl::c_find(function.keys, "name") - function.keys.begin()] =
        json::TextValue(qualified);
  }
  tools.items.push_back(std::move(nested));
  draft.request.tool_places.push_back(at);
  return absl::OkStatus();
}

absl::Status AddNamespace(const std::string& at, const Value& value, Draft& draft, Value& tools) {
  BATON_RETURN_IF_ERROR(CheckMembers(at, value, {"type", "name", "description", "tools"}));
  BATON_ASSIGN_OR_RETURN(const std::string name, RequiredText(at, value, "name"));
  if (name.empty()) return WrongType(at + ".name", "the name of a namespace");
  if (FindSet(value, "description") != nullptr) {
    BATON_RETURN_IF_ERROR(RequiredText(at, value, "description").status());
    IgnoreOnce("tools.namespace.description", draft.request.ignored);
  }
  const Value* functions = FindSet(value, "tools");
  if (functions == nullptr || !IsArray(*functions)) {
    return WrongType(at + ".tools", "an array of tools");
  }
  for (size_t i = 0; i < functions->items.size(); ++i) {
    BATON_RETURN_IF_ERROR(
        AddFlatTool(absl::StrCat(at, ".tools[", i, "]"), name, functions->items[i], draft, tools));
  }
  return absl::OkStatus();
}

absl::Status ReadFlatTools(absl::string_view name, const Value& value, Draft& draft) {
  if (!IsArray(value)) return WrongType(name, "an array of tools");
  Value tools = json::ArrayValue();
  for (size_t i = 0; i < value.items.size(); ++i) {
    const Value& tool = value.items[i];
    const std::string at = absl::StrCat(name, "[", i, "]");
    BATON_RETURN_IF_ERROR(TypeOf(tool) == "namespace"
                              ? AddNamespace(at, tool, draft, tools)
                              : AddFlatTool(at, /*name_space=*/"", tool, draft, tools));
  }
  // A call of that name could be one of either.
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const Value* given = tools.items[i].Find("function")->Find("name");
    if (given == nullptr || !IsScalar(*given, Scalar::Kind::kString)) continue;
    const auto found = draft.responses.namespaced.find(given->scalar.text);
    if (found == draft.responses.namespaced.end()) continue;
    const std::string& place = draft.request.tool_places[i];
    if (!absl::StrContains(place, "].tools[")) {
      return InvalidField("SCHEMA_INVALID", place + ".name", "another tool has the same name");
    }
  }
  return WithoutPart(ReadTools(name, tools, draft.request), ".function");
}

absl::Status ReadFlatToolChoice(absl::string_view name, const Value& value, Draft& draft) {
  if (!IsObject(value)) return ReadToolChoice(name, value, draft.request);
  BATON_ASSIGN_OR_RETURN(const Value choice,
                         ChatFunction(std::string(name), value, {"type", "name"}));
  return WithoutPart(ReadToolChoice(name, choice, draft.request), ".function");
}

struct ResponsesField {
  absl::string_view name;
  absl::Status (*read)(absl::string_view name, const Value& value, Draft& draft);
  // The value of the response object's member of that name where the request has none; empty: the
  // response has no such member.
  absl::string_view echo_default = "";
};

constexpr ResponsesField kFields[] = {
    {"model", ReadAsChat},
    {"input", ReadInput},
    {"stream", ReadAsChat},
    {"stream_options", ReadStreamOptions},
    {"include", ReadInclude},
    {"instructions", ReadInstructions, "null"},
    {"max_output_tokens", ReadMaxOutputTokens, "null"},
    {"max_tool_calls", ReadMaxToolCalls, "null"},
    {"metadata", ReadEchoedMetadata, "{}"},
    {"parallel_tool_calls", ReadAsChat, "true"},
    {"previous_response_id", ReadPreviousId, "null"},
    {"prompt_cache_key", ReadAsChat, "null"},
    {"reasoning", ReadReasoning, R"({"effort":null,"summary":null})"},
    {"safety_identifier", ReadAsChat, "null"},
    {"service_tier", ReadAsChat, R"("default")"},
    {"store", ReadStored},
    {"temperature", ReadAsChat, "null"},
    {"text", ReadText, R"({"format":{"type":"text"}})"},
    {"tool_choice", ReadFlatToolChoice, R"("auto")"},
    {"tools", ReadFlatTools, "[]"},
    {"top_logprobs", ReadAsChat, "0"},
    {"top_p", ReadAsChat, "null"},
    {"truncation", ReadResponsesTruncation, R"("disabled")"},
    {"user", ReadAsChat, "null"},
    {"background", ReadBackground, "false"},
    {"client_metadata", ReadClientMetadata},  // Codex's
    // vLLM's, and Baton's own.
    {"top_k", ReadAsChat},
    {"min_p", ReadAsChat},
    {"repetition_penalty", ReadAsChat},
    {"frequency_penalty", ReadAsChat},
    {"presence_penalty", ReadAsChat},
    {"seed", ReadAsChat},
    {"logit_bias", ReadAsChat},
    {"stop", ReadAsChat},
    {"stop_token_ids", ReadAsChat},
    {"ignore_eos", ReadAsChat},
    {"min_tokens", ReadAsChat},
    {"any_whitespace", ReadAsChat},
    {"cache_salt", ReadAsChat},
    {"retention", ReadAsChat},
    {"speculation", ReadAsChat},
    {"split_special_tokens", ReadAsChat},
    {"chat_template_kwargs", ReadAsChat},
};

// Fields of OpenAI's API for what a server of one model does not have.
constexpr absl::string_view kRefused[] = {
    "access_programs", "background_options",   "context_management",     "conversation", "image",
    "moderation",      "prompt_cache_options", "prompt_cache_retention", "prompt",
};

const ResponsesField* FindResponsesField(absl::string_view name) {
  const auto* found =
      absl::c_find_if(kFields, [&](const ResponsesField& f) { return f.name == name; });
  return found == std::end(kFields) ? nullptr : found;
}

absl::Status Refused(absl::string_view name) {
  return Unsupported(name, "this server does not support the field");
}

absl::StatusOr<Value> ReadDocument(absl::string_view body, int64_t* json_bytes) {
  const auto is_field = [](absl::string_view name) {
    return FindResponsesField(name) != nullptr || absl::c_linear_search(kRefused, name);
  };
  BodyReader reader(is_field, {"prompt", kMaxPrompts});
  const absl::Status read = json::Visit(body, "the request's body", reader);
  // The reader takes this field for that of completions.
  if (absl::StartsWith(ErrorField(reader.status()), "prompt") || !reader.TakePrompts().empty()) {
    return Refused("prompt");
  }
  BATON_RETURN_IF_ERROR(reader.status());
  if (!read.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_JSON", read.message());
  }
  *json_bytes = static_cast<int64_t>(2 * reader.values() * sizeof(Value));
  return reader.TakeDocument();
}

// The value of a member of the response object. Each has what the client's types need.
std::string EchoOf(const ResponsesField& field, const Value* value) {
  if (value == nullptr) return std::string(field.echo_default);
  if (field.name == "service_tier") return std::string(field.echo_default);  // there is one tier
  if (field.name == "truncation" && IsObject(*value)) return R"("auto")";
  if (field.name == "text" && FindSet(*value, "format") == nullptr) {
    Value text = *value;
    DropNulls(text);
    Value& format = json::AddMember("format", Value(), &text);
    json::AddMember("type", json::TextValue("text"), &format);
    return json::ToText(text);
  }
  if (field.name != "metadata") return json::ToText(*value);
  Value metadata = *value;
  DropNulls(metadata);
  return json::ToText(metadata);
}

std::string EchoOf(const Value& document) {
  std::string echo;
  for (const ResponsesField& field : kFields) {
    if (field.echo_default.empty()) continue;
    absl::StrAppend(&echo, echo.empty() ? "" : ",", "\"", field.name,
                    "\":", EchoOf(field, FindSet(document, field.name)));
  }
  return echo;
}

absl::Status CheckLogprobs(const OpenAiRequest& request) {
  if (request.wants_logprobs) {
    if (request.conversation.tools.is_null()) return absl::OkStatus();
    return Unsupported("include", "message.output_text.logprobs is not supported with tools");
  }
  if (request.top_logprobs.value_or(0) == 0) return absl::OkStatus();
  return InvalidField("ONLY_WITH_LOGPROBS", "top_logprobs",
                      "given without \"message.output_text.logprobs\" in include");
}

}  // namespace

absl::Status WithResponsesField(const absl::Status& error) {
  constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
      {"messages", "input"},
      {"max_tokens", "max_output_tokens"},
      {"stop.max_tokens", "max_output_tokens"},
      {"structured_output", "text.format"},
      {"structured_output.json_schema", "text.format.schema"},
      {"logprobs", "top_logprobs"},
  };
  const std::string field = ErrorField(error);
  for (const auto& [chat, own] : kNames) {
    if (field == chat) return Renamed(error, own);
  }
  const bool of_tools = absl::StartsWith(field, "tools[") || absl::StartsWith(field, "tool_choice");
  return of_tools ? WithoutPart(error, ".function") : error;
}

absl::StatusOr<OpenAiRequest> ParseResponses(absl::string_view body) {
  Draft draft;
  OpenAiRequest& request = draft.request;
  BATON_ASSIGN_OR_RETURN(const Value document, ReadDocument(body, &request.json_bytes));
  for (size_t i = 0; i < document.keys.size(); ++i) {
    if (document.items[i].is_null()) continue;
    const std::string& name = document.keys[i];
    const ResponsesField* field = FindResponsesField(name);
    if (field == nullptr) return Refused(name);
    BATON_RETURN_IF_ERROR(field->read(name, document.items[i], draft));
  }
  if (FindSet(document, "input") == nullptr) {
    return InvalidField("MISSING_FIELD", "input", "required");
  }
  if (draft.input.size() == 0 && draft.responses.previous_response_id.empty()) {
    return InvalidField("EMPTY_PROMPT", "input", "no message given");
  }
  BATON_RETURN_IF_ERROR(CheckLogprobs(request));
  ChatMessages lead;
  if (!draft.instructions.is_null()) lead.AddText("system", draft.instructions.scalar.text);
  draft.responses.lead = lead.size();
  request.conversation.messages = lead.Take();
  absl::c_move(draft.input.Take().items, std::back_inserter(request.conversation.messages.items));
  draft.responses.echo = EchoOf(document);
  request.responses = std::make_shared<ResponsesRequest>(std::move(draft.responses));
  BATON_RETURN_IF_ERROR(WithResponsesField(FinishChat(request)));
  return std::move(request);
}

}  // namespace baton::router
