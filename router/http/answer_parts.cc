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
    reasoning_.emplace(options.reasoning, options.starts_in_reasoning,
                       options.tool_calls == chat::ToolCallFormat::kHarmony);
  }
  if (options.tool_calls == chat::ToolCallFormat::kUnsupported) return;
  parser_.emplace(options.tool_calls, options.call_id_seed + choice, options.tools,
                  options.calls_begin);
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

void ReasoningTokens::Add(const v1::GenerateResponse& delta, const AnswerParts::Options& options) {
  if (options.reasoning == chat::ReasoningFormat::kNone) return;
  const int tokens = std::max(0, delta.usage().generated_tokens() - generated_);
  generated_ += tokens;
  Choice& choice = choices_[delta.choice()];
  if (!choice.parser) choice.parser.emplace(options.reasoning, options.starts_in_reasoning);
  chat::ReasoningParser::Delta parsed = choice.parser->Append(delta.text());
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    const chat::ReasoningParser::Delta last = choice.parser->Finish();
    parsed.reasoning += last.reasoning;
    parsed.content += last.content;
  }
  if (!parsed.content.empty()) {
    choice.last = Part::kContent;
  } else if (!parsed.reasoning.empty()) {
    choice.last = Part::kReasoning;
  }
  choice.undecided += tokens;
  if (choice.last == Part::kNone) return;
  if (choice.last == Part::kReasoning) count_ += choice.undecided;
  choice.undecided = 0;
}

}  // namespace baton::router
