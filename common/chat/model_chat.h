// The chat template of a model directory, with the variables that the directory gives it.
#ifndef BATON_COMMON_CHAT_MODEL_CHAT_H_
#define BATON_COMMON_CHAT_MODEL_CHAT_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/byte_range.h"
#include "common/chat/chat_template.h"
#include "common/chat/reasoning.h"
#include "common/chat/tool_call_syntax.h"
#include "common/chat/tool_calls.h"
#include "common/json/json.h"

namespace baton::chat {

struct Conversation {
  // An array of objects, as in OpenAI's API. Render replaces the texts of tool calls' arguments by
  // the objects they describe, which most templates expect, unless the template needs texts. A
  // content that is null or absent, as beside tool calls, becomes "" unless the template renders
  // null: many fail at it or write "None". A message's reasoning, its `reasoning_content`,
  // `reasoning` or `thinking`, also gets the name under which the template reads it.
  json::Value messages = {};
  json::Value tools = {};  // an array of objects; null without tools
  bool add_generation_prompt = true;
  // Further variables, an object, e.g. {"enable_thinking": false}; null without any. They may
  // replace special tokens, and not the variables above.
  json::Value variables = {};
  // Text of all fields above stays text where it spells special tokens.
  bool split_special_tokens = true;
};

struct RenderedChat {
  std::string text;
  // Where the tokenizer must not recognise special tokens: the conversation's text, if
  // split_special_tokens.
  ByteRanges split;
  // The text starts with the BOS token, so the tokenizer must add none.
  bool starts_with_bos = false;
  // The template has begun the reasoning of the answer, which goes on with it.
  bool ends_in_reasoning = false;
  // The template has ended it: there is none in the answer.
  bool ends_after_reasoning = false;
};

// Immutable once loaded, thread-safe.
class ModelChat {
 public:
  ModelChat() = default;  // without a template

  // Reads `model_dir`/chat_template.jinja, or the field chat_template of tokenizer_config.json if
  // there is no such file: a text, or a list of named texts, of which Baton uses "default" and, for
  // conversations with tools, "tool_use". Beside chat_template.jinja,
  // additional_chat_templates/tool_use.jinja has that role. tokenizer_config.json also gives the
  // special tokens. In a GGUF file, tokenizer.chat_template and tokenizer.chat_template.tool_use
  // are the templates. A model without a template is no error. INVALID_ARGUMENT, reason
  // "BAD_CHAT_TEMPLATE": a template or tokenizer_config.json is malformed; the message has the file
  // and the line or field.
  static absl::StatusOr<ModelChat> Load(const std::string& model_dir);

  bool has_template() const { return template_.has_value(); }
  // How the model calls tools, as its template (the one for tools, if it has two) shows.
  // kUnsupported also if the template does not render the tools it is given.
  ToolCallFormat tool_call_format() const { return tool_call_format_; }
  // The same to the last character, as the template writes an earlier call; null if that is not a
  // way of the format which Baton knows.
  const ToolCallSyntax* tool_call_syntax() const { return tool_call_syntax_; }
  // True for the roles of OpenAI's API, and for those that a template of the model names.
  bool KnowsRole(absl::string_view role) const;
  // How the model marks its reasoning, as its template shows.
  ReasoningFormat reasoning_format() const { return reasoning_format_; }
  // True if the template, or that for tools, reads a variable of this name. Other names in
  // Conversation::variables have no effect.
  bool ReadsVariable(absl::string_view name) const;
  // The text of the BOS token; empty if the model has none.
  const std::string& bos_token() const { return bos_token_; }

  // Errors as ChatTemplate::Render; INVALID_ARGUMENT, reason "NO_CHAT_TEMPLATE", without a
  // template, and "BAD_CHAT_VARIABLE" for a variable that may not be set.
  absl::StatusOr<RenderedChat> Render(Conversation conversation, absl::Time now,
                                      const RenderLimits& limits = {}) const;

 private:
  std::optional<ChatTemplate> template_;
  std::optional<ChatTemplate> tool_template_;
  // Each renders a small conversation to find out.
  bool TakesArgumentObjects() const;
  // REQUIRES: the template takes objects. True if it also writes arguments that are a text.
  bool KeepsArgumentTexts() const;
  bool TakesNullContent() const;
  bool RendersTools() const;
  const ToolCallSyntax* RenderedSyntax() const;
  // The name under which the template reads a message's reasoning; empty if it reads none.
  std::string ReasoningField() const;

  bool parses_arguments_ = false;
  bool keeps_argument_texts_ = false;
  bool takes_null_content_ = true;
  ToolCallFormat tool_call_format_ = ToolCallFormat::kUnsupported;
  std::string sources_;  // of both templates
  const ToolCallSyntax* tool_call_syntax_ = nullptr;
  ReasoningFormat reasoning_format_ = ReasoningFormat::kNone;
  std::string reasoning_field_;
  std::string bos_token_;
  std::vector<std::pair<std::string, json::Value>> special_tokens_;
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_MODEL_CHAT_H_
