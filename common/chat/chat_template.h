// A chat template of a Hugging Face model: a Jinja2 template that turns a conversation into the
// text of a prompt. Renders what `transformers` renders, which runs jinja2 in a sandbox with
// trim_blocks and lstrip_blocks, loop controls, the block {% generation %}, the functions
// raise_exception and strftime_now, and a filter tojson that does not escape HTML.
//
// Left out, each an error at load: template inheritance, include and import, autoescape, and the
// filters filesizeformat, forceescape, groupby, pprint, random, striptags, truncate, urlencode,
// urlize, wordcount, wordwrap and xmlattr. loop.changed is undefined. Integers have 64 bits.
//
// A template comes from outside, and so do its variables: neither can crash or hang the process,
// read files, or use more than RenderLimits. Parsing is bounded by kMaxSourceBytes and
// kMaxSyntaxDepth.
#ifndef BATON_COMMON_CHAT_CHAT_TEMPLATE_H_
#define BATON_COMMON_CHAT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/chat/traced_text.h"
#include "common/json/json.h"

namespace baton::chat {

struct TemplateSyntax;

inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;
inline constexpr int kMaxSyntaxDepth = 150;

// The defaults let a template handle some MiB of text and end it within a few seconds.
struct RenderLimits {
  size_t max_steps = 20'000'000;  // expressions, statements, and each 64 bytes handled
  size_t max_output_bytes = size_t{32} << 20;
  size_t max_value_bytes = size_t{128} << 20;  // at one time, with the variables
  int max_depth = 400;                         // of nested calls, statements and expressions
};

// Immutable once parsed, thread-safe; copies share their syntax.
class ChatTemplate {
 public:
  // `name` is the file's or template's in messages. A byte order mark at the start is no part of
  // the template. INVALID_ARGUMENT, reason "BAD_CHAT_TEMPLATE": "NAME:LINE: message".
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source, absl::string_view name);

  // The variables are two objects. Strings in `request_variables` are the request's text, except
  // the roles of messages that OpenAI's API knows; a variable in it hides one of the same name in
  // `model_variables`, whose strings count as the template's text. Numbers count as the template's
  // text, too. strftime_now formats `now` in UTC, so that all replicas make the same prompt.
  // Errors:
  //   INVALID_ARGUMENT "CHAT_TEMPLATE_REFUSED": the template called raise_exception; the message is
  //       the template's, for the author of the request;
  //   INVALID_ARGUMENT "CHAT_TEMPLATE_FAILED": what jinja2 reports as an exception, for instance an
  //       attribute of an undefined variable: "NAME:LINE: message";
  //   RESOURCE_EXHAUSTED "CHAT_TEMPLATE_LIMIT": a limit is exceeded: "NAME:LINE: message".
  absl::StatusOr<TracedText> Render(json::Value request_variables, json::Value model_variables,
                                    absl::Time now, const RenderLimits& limits = {}) const;

  // True if the template reads a variable of this name that it does not always set itself. Another
  // name has no effect as a variable of Render.
  bool ReadsVariable(absl::string_view name) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const TemplateSyntax> syntax);
  std::shared_ptr<const TemplateSyntax> syntax_;
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_CHAT_TEMPLATE_H_
