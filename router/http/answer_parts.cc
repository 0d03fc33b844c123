#include "router/http/answer_parts.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"

namespace baton::router {

AnswerParts::AnswerParts(const Options& options, int choice)
    : include_reasoning_(options.include_reasoning),
      parallel_tool_calls_(options.parallel_tool_calls) {
  if (options.reasoning != chat::ReasoningFormat::kNone) {
    reasoning_.emplace(options.reasoning, options.starts_in_reasoning);
  }
  if (options.tool_calls == chat::ToolCallFormat::kUnsupported) return;
  parser_.emplace(options.tool_calls, options.call_id_seed + choice);
}

AnswerParts::Delta AnswerParts::Append(absl::string_view text, bool ends) {
  Delta delta;
  std::string content;
  if (reasoning_) {
    chat::ReasoningParser::Delta parsed = reasoning_->Append(text);
    if (ends) {
      const chat::ReasoningParser::Delta last = reasoning_->Finish();
      parsed.reasoning += last.reasoning;
      parsed.content += last.content;
    }
    if (include_reasoning_) delta.reasoning = std::move(parsed.reasoning);
    content = std::move(parsed.content);
  } else {
    content = std::string(text);
  }
  if (!parser_) {
    delta.text = std::move(content);
    return delta;
  }
  chat::ToolCallParser::Delta parsed = parser_->Append(content);
  delta.text = std::move(parsed.text);
  delta.calls = std::move(parsed.calls);
  if (ends) {
    chat::ToolCallParser::Delta last = parser_->Finish();
    delta.text += last.text;
    absl::c_move(last.calls, std::back_inserter(delta.calls));
  }
  if (!parallel_tool_calls_) {
    delta.calls.resize(std::min<size_t>(delta.calls.size(), calls_ == 0 ? 1 : 0));
  }
  calls_ += static_cast<int>(delta.calls.size());
  return delta;
}

}  // namespace baton::router
