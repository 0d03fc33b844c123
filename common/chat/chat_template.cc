#include "common/chat/chat_template.h"

#include <cstddef>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/chat/interpreter.h"
#include "common/chat/parser.h"
#include "common/chat/runtime.h"
#include "common/chat/syntax.h"

namespace baton::chat {

ChatTemplate::ChatTemplate(std::shared_ptr<const TemplateSyntax> syntax)
    : syntax_(std::move(syntax)) {}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source, absl::string_view name) {
  // jinja2 would write the mark into every prompt.
  BATON_ASSIGN_OR_RETURN(auto syntax, ParseTemplate(WithoutByteOrderMark(source), name));
  return ChatTemplate(std::move(syntax));
}

absl::StatusOr<TracedText> ChatTemplate::Render(json::Value request_variables,
                                                json::Value model_variables, absl::Time now,
                                                const RenderLimits& limits) const {
  Runtime runtime(limits, now);
  return Interpreter(*syntax_, runtime)
      .Run(std::move(request_variables), std::move(model_variables));
}

bool ChatTemplate::ReadsVariable(absl::string_view name) const {
  const size_t id = absl::c_find(syntax_->names, name) - syntax_->names.begin();
  return id < syntax_->names.size() && syntax_->reads[id];
}

}  // namespace baton::chat
