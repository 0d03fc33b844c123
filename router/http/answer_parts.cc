#include "router/http/answer_parts.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"

namespace baton::router {

AnswerParts::AnswerParts(const Options& options, int choice)
    : parallel_tool_calls_(options.parallel_tool_calls) {
  if (options.tool_calls == chat::ToolCallFormat::kUnsupported) return;
  parser_.emplace(options.tool_calls, options.call_id_seed + choice);
}

AnswerParts::Delta AnswerParts::Append(absl::string_view text, bool ends) {
  Delta delta;
  if (!parser_) {
    delta.text = std::string(text);
    return delta;
  }
  chat::ToolCallParser::Delta parsed = parser_->Append(text);
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
