#include "common/chat/model_chat.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/chat/text.h"
#include "common/gguf/documents.h"
#include "common/json/scanner.h"

namespace baton::chat {
namespace {

constexpr size_t kMaxConfigBytes = size_t{64} << 20;
constexpr size_t kMaxConfigValues = size_t{1} << 22;
constexpr absl::string_view kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                "pad_token", "cls_token", "mask_token"};
constexpr absl::string_view kReasoningFields[] = {"reasoning_content", "reasoning", "thinking"};
constexpr absl::string_view kReserved[] = {"messages", "tools", "documents",
                                           "add_generation_prompt"};

absl::Status BadTemplate(absl::string_view file, absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_CHAT_TEMPLATE",
                   absl::StrCat(file, ": ", message));
}

absl::Status AsBadTemplate(absl::Status status) {
  return WithDetails(std::move(status), "BAD_CHAT_TEMPLATE", /*field=*/"",
                     /*retry_after=*/std::nullopt);
}

// The content of a file; nullopt if there is none of this name.
absl::StatusOr<std::optional<std::string>> ReadOptionalFile(const std::string& path,
                                                            size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return std::nullopt;
  if (status.type() != std::filesystem::file_type::regular) {
    return BadTemplate(path, "found no regular file, expected one");
  }
  std::ifstream file(path, std::ios::binary);
  std::string content(std::istreambuf_iterator<char>(file), {});
  if (!file) return BadTemplate(path, "cannot be read");
  if (content.size() > max_bytes) {
    return BadTemplate(
        path, absl::StrCat("found ", content.size(), " bytes, expected at most ", max_bytes));
  }
  return content;
}

// The templates of a model, what the last one of them shows of tool calls, and any of reasoning.
struct Templates {
  std::optional<ChatTemplate> normal;
  std::optional<ChatTemplate> with_tools;
  ToolCallFormat tool_calls = ToolCallFormat::kUnsupported;
  std::string sources;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
};

absl::StatusOr<ChatTemplate> ParseInto(absl::string_view source, absl::string_view name,
                                       Templates* templates) {
  templates->tool_calls = DetectToolCallFormat(source);
  absl::StrAppend(&templates->sources, source, "\n");
  if (templates->reasoning == ReasoningFormat::kNone) {
    templates->reasoning = DetectReasoningFormat(source);
  }
  return ChatTemplate::Parse(source, name);
}

// Reads the template files of the directory.
absl::StatusOr<Templates> ReadTemplateFiles(const std::string& model_dir) {
  Templates templates;
  const std::string normal = absl::StrCat(model_dir, "/chat_template.jinja");
  BATON_ASSIGN_OR_RETURN(const auto source, ReadOptionalFile(normal, kMaxSourceBytes));
  if (!source) return templates;
  BATON_ASSIGN_OR_RETURN(templates.normal, ParseInto(*source, normal, &templates));
  const std::string tools = absl::StrCat(model_dir, "/additional_chat_templates/tool_use.jinja");
  BATON_ASSIGN_OR_RETURN(const auto tool_source, ReadOptionalFile(tools, kMaxSourceBytes));
  if (!tool_source) return templates;
  BATON_ASSIGN_OR_RETURN(templates.with_tools, ParseInto(*tool_source, tools, &templates));
  return templates;
}

bool IsString(const json::Value* value) {
  return value != nullptr && value->kind == json::Value::Kind::kScalar &&
         value->scalar.kind == json::Scalar::Kind::kString;
}

// The text of a token, which is a string or an object of an added token; null for anything else.
const json::Value* TokenText(const json::Value* token) {
  if (token != nullptr && token->kind == json::Value::Kind::kObject) token = token->Find("content");
  return IsString(token) ? token : nullptr;
}

// The template of this name in a list of {name, template}; null if there is none.
const json::Value* NamedTemplate(const json::Value& list, absl::string_view name) {
  for (const json::Value& item : list.items) {
    const json::Value* item_name = item.Find("name");
    const json::Value* source = item.Find("template");
    if (IsString(item_name) && item_name->scalar.text == name && IsString(source)) return source;
  }
  return nullptr;
}

absl::StatusOr<Templates> ReadConfigTemplates(const json::Value& config, const std::string& path) {
  Templates templates;
  const json::Value* field = config.Find("chat_template");
  if (field == nullptr || field->is_null()) return templates;
  const std::string name = absl::StrCat(path, ": chat_template");
  const json::Value* normal = field;
  const json::Value* with_tools = nullptr;
  if (field->kind == json::Value::Kind::kArray) {
    normal = NamedTemplate(*field, "default");
    with_tools = NamedTemplate(*field, "tool_use");
    if (normal == nullptr) return BadTemplate(name, "expected a template of the name \"default\"");
  }
  if (!IsString(normal)) return BadTemplate(name, "expected a text or a list of named texts");
  BATON_ASSIGN_OR_RETURN(templates.normal, ParseInto(normal->scalar.text, name, &templates));
  if (with_tools != nullptr) {
    BATON_ASSIGN_OR_RETURN(
        templates.with_tools,
        ParseInto(with_tools->scalar.text, absl::StrCat(name, " \"tool_use\""), &templates));
  }
  return templates;
}

std::vector<std::pair<std::string, json::Value>> ReadSpecialTokens(const json::Value& config) {
  std::vector<std::pair<std::string, json::Value>> tokens;
  for (const absl::string_view name : kSpecialTokens) {
    const json::Value* text = TokenText(config.Find(name));
    if (text != nullptr) tokens.emplace_back(std::string(name), *text);
  }
  // Tokens with names of the model's own, e.g. "image_token".
  const json::Value* extra = config.Find("extra_special_tokens");
  for (size_t i = 0; extra != nullptr && i < extra->keys.size(); ++i) {
    const json::Value* text = TokenText(&extra->items[i]);
    if (text != nullptr) tokens.emplace_back(extra->keys[i], *text);
  }
  const json::Value* additional = config.Find("additional_special_tokens");
  if (additional != nullptr && additional->kind == json::Value::Kind::kArray) {
    json::Value list;
    list.kind = json::Value::Kind::kArray;
    for (const json::Value& token : additional->items) {
      if (const json::Value* text = TokenText(&token)) list.items.push_back(*text);
    }
    tokens.emplace_back("additional_special_tokens", std::move(list));
  }
  return tokens;
}

// Replaces the texts of all tool calls' arguments by the objects they describe. A text that
// describes none, as of a call that an answer's end has cut off, stays if `keeps_texts`; else it
// becomes the members that are whole in it.
void ParseArguments(bool keeps_texts, json::Value* messages) {
  for (json::Value& message : messages->items) {
    json::Value* const calls = message.Find("tool_calls");
    if (calls == nullptr || calls->kind != json::Value::Kind::kArray) continue;
    for (json::Value& call : calls->items) {
      json::Value* const function = call.Find("function");
      json::Value* const arguments = function == nullptr ? nullptr : function->Find("arguments");
      if (!IsString(arguments)) continue;
      auto parsed = json::Parse(arguments->scalar.text, "arguments");
      const bool is_object = parsed.ok() && parsed->kind == json::Value::Kind::kObject;
      if (!is_object && keeps_texts) continue;
      if (!is_object) {
        parsed = json::Parse(json::WholeMembers(arguments->scalar.text), "arguments");
      }
      if (parsed.ok()) *arguments = *std::move(parsed);
    }
  }
}

void SetMissingContents(json::Value* messages, const json::Value& missing) {
  for (json::Value& message : messages->items) {
    if (message.kind != json::Value::Kind::kObject) continue;
    json::Value* const content = message.Find("content");
    if (content == nullptr) {
      message.keys.emplace_back("content");
      message.items.push_back(missing);
    } else if (content->is_null()) {
      *content = missing;
    }
  }
}

// Gives the reasoning of messages that have it under another name the name `field`.
void NameReasoning(absl::string_view field, json::Value* messages) {
  for (json::Value& message : messages->items) {
    if (message.kind != json::Value::Kind::kObject || message.Find(field) != nullptr) continue;
    for (const absl::string_view name : kReasoningFields) {
      const json::Value* const reasoning = message.Find(name);
      if (!IsString(reasoning)) continue;
      json::Value named = *reasoning;
      message.keys.emplace_back(field);
      message.items.push_back(std::move(named));
      break;
    }
  }
}

// How often a text has what templates write for null.
size_t CountNulls(absl::string_view text) {
  return CountText(text, "None") + CountText(text, "null");
}

constexpr char kProbeTools[] = R"([{"type": "function", "function": {"name": "probe_of_tools",
  "description": "x", "parameters": {"type": "object", "properties": {}, "required": []}}}])";
constexpr char kProbeMessages[] = R"([
  {"role": "user", "content": "x"},
  {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function",
    "function": {"name": "probe_of_tools", "arguments": "{\"argument_of_probe\": \"x\"}"}}]},
  {"role": "tool", "tool_call_id": "call00001", "name": "probe_of_tools", "content": "x"}])";

constexpr char kProbeAnswer[] = R"([
  {"role": "user", "content": "x"}, {"role": "assistant", "content": ""}])";

void SetVariable(json::Value* variables, absl::string_view name, json::Value value) {
  const auto found = std::find(variables->keys.begin(), variables->keys.end(), name);
  if (found != variables->keys.end()) {
    variables->items[found - variables->keys.begin()] = std::move(value);
    return;
  }
  variables->keys.emplace_back(name);
  variables->items.push_back(std::move(value));
}

}  // namespace

absl::StatusOr<ModelChat> ModelChat::Load(const std::string& model_dir) {
  ModelChat chat;
  const bool is_gguf = gguf::IsGguf(model_dir);
  const std::string config_path = gguf::DocumentName(model_dir, "tokenizer_config.json");
  auto config_text = is_gguf ? gguf::ReadDocument(model_dir, "tokenizer_config.json")
                             : ReadOptionalFile(config_path, kMaxConfigBytes);
  if (!config_text.ok()) return AsBadTemplate(config_text.status());
  json::Value config;
  if (*config_text) {
    auto parsed = json::Parse(**config_text, config_path, kMaxConfigValues);
    if (!parsed.ok()) return AsBadTemplate(parsed.status());
    config = *std::move(parsed);
  }
  chat.special_tokens_ = ReadSpecialTokens(config);
  if (const json::Value* bos = TokenText(config.Find("bos_token"))) {
    chat.bos_token_ = bos->scalar.text;
  }
  Templates templates;
  if (!is_gguf) {
    BATON_ASSIGN_OR_RETURN(templates, ReadTemplateFiles(model_dir));
  }
  if (!templates.normal) {
    BATON_ASSIGN_OR_RETURN(templates, ReadConfigTemplates(config, config_path));
  }
  chat.tool_call_format_ = templates.tool_calls;
  chat.sources_ = std::move(templates.sources);
  chat.reasoning_format_ = templates.reasoning;
  chat.template_ = std::move(templates.normal);
  chat.tool_template_ = std::move(templates.with_tools);
  chat.parses_arguments_ = chat.template_.has_value() && chat.TakesArgumentObjects();
  chat.keeps_argument_texts_ = chat.parses_arguments_ && chat.KeepsArgumentTexts();
  chat.takes_null_content_ = chat.template_.has_value() && chat.TakesNullContent();
  if (chat.template_) chat.reasoning_field_ = chat.ReasoningField();
  if (!chat.template_ || !chat.RendersTools())
    chat.tool_call_format_ = ToolCallFormat::kUnsupported;
  if (chat.tool_call_format_ != ToolCallFormat::kUnsupported) {
    chat.tool_call_syntax_ = chat.RenderedSyntax();
  }
  return chat;
}

bool ModelChat::KnowsRole(absl::string_view role) const {
  static constexpr absl::string_view kRoles[] = {"system",    "developer", "user",
                                                 "assistant", "tool",      "function"};
  if (std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles)) return true;
  return absl::StrContains(sources_, absl::StrCat("'", role, "'")) ||
         absl::StrContains(sources_, absl::StrCat("\"", role, "\""));
}

bool ModelChat::TakesArgumentObjects() const {
  ModelChat probe = *this;
  probe.parses_arguments_ = true;
  const auto rendered = probe.Render({.messages = json::Parse(kProbeMessages, "probe").value(),
                                      .tools = json::Parse(kProbeTools, "probe").value(),
                                      .add_generation_prompt = false},
                                     absl::UnixEpoch());
  // A template that expects a text and prints the object writes it with Python's quotes.
  return rendered.ok() && absl::StrContains(rendered->text, "argument_of_probe") &&
         !absl::StrContains(rendered->text, "'argument_of_probe'");
}

bool ModelChat::KeepsArgumentTexts() const {
  static constexpr absl::string_view kCutOff = R"({"argument_of_probe": "x)";
  ModelChat probe = *this;
  probe.keeps_argument_texts_ = true;
  Conversation conversation{.messages = json::Parse(kProbeMessages, "probe").value(),
                            .tools = json::Parse(kProbeTools, "probe").value(),
                            .add_generation_prompt = false};
  json::Value& call = conversation.messages.items[1].Find("tool_calls")->items[0];
  *call.Find("function")->Find("arguments") = json::TextValue(std::string(kCutOff));
  const auto rendered = probe.Render(std::move(conversation), absl::UnixEpoch());
  return rendered.ok() && absl::StrContains(rendered->text, "argument_of_probe");
}

bool ModelChat::TakesNullContent() const {
  ModelChat probe = *this;
  // The first conversation has a tool call; the second one is for templates that refuse tool calls.
  for (const char* const messages : {kProbeMessages, kProbeAnswer}) {
    Conversation conversation{.messages = json::Parse(messages, "probe").value(),
                              .add_generation_prompt = false};
    conversation.messages.items[1].items[1] = json::Value();  // the answer's content
    probe.takes_null_content_ = true;
    const auto with_null = probe.Render(conversation, absl::UnixEpoch());
    probe.takes_null_content_ = false;
    const auto with_text = probe.Render(conversation, absl::UnixEpoch());
    if (!with_null.ok() && !with_text.ok()) continue;
    if (!with_null.ok() || !with_text.ok()) return with_null.ok();
    return CountNulls(with_null->text) <= CountNulls(with_text->text);
  }
  return false;
}

bool ModelChat::RendersTools() const {
  json::Value messages = json::Parse(kProbeMessages, "probe").value();
  messages.items.resize(1);
  const auto rendered =
      Render({.messages = std::move(messages), .tools = json::Parse(kProbeTools, "probe").value()},
             absl::UnixEpoch());
  return rendered.ok() && absl::StrContains(rendered->text, "probe_of_tools");
}

const ToolCallSyntax* ModelChat::RenderedSyntax() const {
  const auto rendered = Render({.messages = json::Parse(kProbeMessages, "probe").value(),
                                .tools = json::Parse(kProbeTools, "probe").value(),
                                .add_generation_prompt = false},
                               absl::UnixEpoch());
  if (!rendered.ok()) return nullptr;
  return FindSyntax(tool_call_format_, rendered->text, "probe_of_tools");
}

// Most templates drop the reasoning of turns that a later message of the user has ended, so the
// probes have none. The second one is for templates that refuse tool calls.
std::string ModelChat::ReasoningField() const {
  for (const absl::string_view field : kReasoningFields) {
    for (const char* const messages : {kProbeMessages, kProbeAnswer}) {
      Conversation conversation{.messages = json::Parse(messages, "probe").value(),
                                .add_generation_prompt = false};
      json::Value& answer = conversation.messages.items[1];
      answer.keys.emplace_back(field);
      answer.items.push_back(json::TextValue("probe_of_reasoning"));
      const auto rendered = Render(conversation, absl::UnixEpoch());
      if (rendered.ok() && absl::StrContains(rendered->text, "probe_of_reasoning")) {
        return std::string(field);
      }
    }
  }
  return "";
}

bool ModelChat::ReadsVariable(absl::string_view name) const {
  return (template_ && template_->ReadsVariable(name)) ||
         (tool_template_ && tool_template_->ReadsVariable(name));
}

absl::StatusOr<RenderedChat> ModelChat::Render(Conversation conversation, absl::Time now,
                                               const RenderLimits& limits) const {
  if (!template_) {
    return MakeError(absl::StatusCode::kInvalidArgument, "NO_CHAT_TEMPLATE",
                     "the model has no chat template");
  }
  json::Value tokens;
  tokens.kind = json::Value::Kind::kObject;
  for (const auto& [name, token] : special_tokens_) SetVariable(&tokens, name, token);
  json::Value variables;
  variables.kind = json::Value::Kind::kObject;
  for (size_t i = 0; i < conversation.variables.keys.size(); ++i) {
    const std::string& name = conversation.variables.keys[i];
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "BAD_CHAT_VARIABLE",
          absl::StrCat("the variable ", json::Quoted(name), " is set by the conversation itself"));
    }
    SetVariable(&variables, name, std::move(conversation.variables.items[i]));
  }
  json::Value& messages = conversation.messages;
  if (parses_arguments_) ParseArguments(keeps_argument_texts_, &messages);
  SetMissingContents(&messages, takes_null_content_ ? json::Value() : json::TextValue(""));
  if (!reasoning_field_.empty()) NameReasoning(reasoning_field_, &messages);
  SetVariable(&variables, "messages", std::move(messages));
  const bool with_tools = !conversation.tools.is_null() && tool_template_.has_value();
  SetVariable(&variables, "tools", std::move(conversation.tools));
  SetVariable(&variables, "documents", json::Value());
  SetVariable(&variables, "add_generation_prompt",
              json::BoolValue(conversation.add_generation_prompt));
  RenderedChat rendered;
  BATON_ASSIGN_OR_RETURN(TracedText text,
                         (with_tools ? *tool_template_ : *template_)
                             .Render(std::move(variables), std::move(tokens), now, limits));
  rendered.text = std::move(text.text);
  rendered.ends_in_reasoning = EndsInReasoning(reasoning_format_, rendered.text, text.from_request);
  rendered.ends_after_reasoning =
      EndsAfterReasoning(reasoning_format_, rendered.text, text.from_request);
  if (conversation.split_special_tokens) rendered.split = std::move(text.from_request);
  rendered.starts_with_bos = !bos_token_.empty() && absl::StartsWith(rendered.text, bos_token_) &&
                             !Overlaps(rendered.split, 0, bos_token_.size());
  return rendered;
}

}  // namespace baton::chat
