#include "router/http/answer_parts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

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

// The parser of reasoning does not say which of its texts stands first, but those of one byte have
// one of both. The parser of calls does.
std::vector<chat::AnswerPart> AnswerParts::Append(absl::string_view text, bool ends) {
  std::vector<chat::AnswerPart> parts;
  if (reasoning_) {
    for (size_t i = 0; i < text.size(); ++i) {
      AddReasoned(reasoning_->Append(text.substr(i, 1)), &parts);
    }
    if (ends) AddReasoned(reasoning_->Finish(), &parts);
  } else {
    AddContent(std::string(text), &parts);
  }
  if (ends && parser_) AddParsed(parser_->Finish(), &parts);
  return parts;
}

void AnswerParts::AddReasoned(chat::ReasoningParser::Delta delta,
                              std::vector<chat::AnswerPart>* parts) {
  if (include_reasoning_) {
    chat::AppendPart(
        {.kind = chat::AnswerPart::Kind::kReasoning, .text = std::move(delta.reasoning)}, parts);
  }
  if (!delta.content.empty()) AddContent(std::move(delta.content), parts);
  if (delta.ends_message && parser_) AddParsed(parser_->EndMessage(), parts);
}

void AnswerParts::AddContent(std::string content, std::vector<chat::AnswerPart>* parts) {
  if (parser_) return AddParsed(parser_->Append(content), parts);
  chat::AppendPart({.kind = chat::AnswerPart::Kind::kText, .text = std::move(content)}, parts);
}

void AnswerParts::AddParsed(std::vector<chat::AnswerPart> parsed,
                            std::vector<chat::AnswerPart>* parts) {
  using enum chat::AnswerPart::Kind;
  for (chat::AnswerPart& part : parsed) {
    if (part.kind == kCall) {
      drops_call_ = !parallel_tool_calls_ && calls_ > 0;
      if (!drops_call_) ++calls_;
    }
    if (drops_call_ && part.kind != kText) continue;
    chat::AppendPart(std::move(part), parts);
  }
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
