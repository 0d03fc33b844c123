// The text of one choice of a chat's answer, taken apart: reasoning, text for the reader, and tool
// calls.
#ifndef BATON_ROUTER_HTTP_ANSWER_PARTS_H_
#define BATON_ROUTER_HTTP_ANSWER_PARTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "common/chat/reasoning.h"
#include "common/chat/tool_calls.h"
#include "common/json/json.h"

namespace baton::router {

// One thread at a time. The same parts come out however the text is cut into pieces.
class AnswerParts {
 public:
  struct Options {
    // The calls in the text become tool calls, unless it is kUnsupported.
    chat::ToolCallFormat tool_calls = chat::ToolCallFormat::kUnsupported;
    // The request's, as ToolCallParser takes them.
    std::shared_ptr<const json::Value> tools;
    bool calls_begin = false;         // the answer is calls, or JSON in which nothing is one
    bool parallel_tool_calls = true;  // else only the first call of a choice is returned
    uint64_t call_id_seed = 0;        // random
    // The reasoning in the text is parted from it, unless it is kNone. Calls are found behind it.
    chat::ReasoningFormat reasoning = chat::ReasoningFormat::kNone;
    bool starts_in_reasoning = false;  // the prompt has begun the reasoning
    bool include_reasoning = true;     // else it is dropped
  };
  AnswerParts(const Options& options, int choice);

  // The parts that more text brings, in the order in which the model writes them. `ends`: the text
  // is the last.
  std::vector<chat::AnswerPart> Append(absl::string_view text, bool ends);
  int calls() const { return calls_; }  // that have begun so far

 private:
  void AddReasoned(chat::ReasoningParser::Delta delta, std::vector<chat::AnswerPart>* parts);
  void AddContent(std::string content, std::vector<chat::AnswerPart>* parts);
  void AddParsed(std::vector<chat::AnswerPart> parsed, std::vector<chat::AnswerPart>* parts);

  std::optional<chat::ReasoningParser> reasoning_;
  std::optional<chat::ToolCallParser> parser_;
  const bool include_reasoning_;
  const bool parallel_tool_calls_;
  int calls_ = 0;
  bool drops_call_ = false;  // the open call is none that is returned
};

// Counts the tokens of an answer's reasoning. All that a message of the workers brings belongs
// together: to the reasoning if its text is reasoning alone, not if any of it is behind the
// reasoning. What brings no text (a mark, white space beside it, a part of a character) belongs to
// what came before it, at the start of a choice to what comes next. One thread at a time.
class ReasoningTokens {
 public:
  // A delta of the answer, with its usage, in order. `options` are those of the AnswerParts.
  void Add(const v1::GenerateResponse& delta, const AnswerParts::Options& options);
  int count() const { return count_; }  // of all choices

 private:
  enum class Part : uint8_t { kNone, kReasoning, kContent };
  struct Choice {
    std::optional<chat::ReasoningParser> parser;
    Part last = Part::kNone;
    int undecided = 0;
  };

  std::map<int, Choice> choices_;
  int generated_ = 0;  // tokens so far
  int count_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_ANSWER_PARTS_H_
