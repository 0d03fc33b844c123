// Parts a model's reasoning, what it writes before it answers, from the answer, as the text grows.
#ifndef BATON_COMMON_CHAT_REASONING_H_
#define BATON_COMMON_CHAT_REASONING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/byte_range.h"

namespace baton::chat {

// How a model marks its reasoning.
enum class ReasoningFormat : uint8_t {
  kNone,
  kThinkTags,  // <think>…</think>: Qwen, DeepSeek, GLM, Nemotron, SmolLM, Granite 3, LFM 2.5, …
  kSeedTags,   // <seed:think>…</seed:think>: Seed-OSS
  kMistral,    // [THINK]…[/THINK]
  kGemma4,     // <|channel>thought … <channel|>
  kHarmony,    // gpt-oss: messages that name their channel; those of "analysis" are reasoning
};

// The format that a chat template describes; kNone if Baton does not know it.
ReasoningFormat DetectReasoningFormat(absl::string_view template_source);

// The marks around reasoning. Where the tokenizer has one as a special token, the detokenizer must
// keep its text.
absl::Span<const absl::string_view> ReasoningMarkers(ReasoningFormat format);

// What begins and ends reasoning, as StructuredOutput.Reasoning has it (inference.proto). REQUIRES:
// `format` is not kNone. `calls`: what follows has the marks of its messages, as calls of tools
// have.
struct ReasoningTexts {
  absl::string_view begin;
  absl::string_view end;
};
ReasoningTexts ReasoningTextsOf(ReasoningFormat format, bool calls);

// True if the prompt ends, but for white space, with the mark that begins reasoning, so that the
// answer goes on with the reasoning. A mark of which a byte is in `from_request`, the ranges of the
// text that do not come from the template, does not count.
bool EndsInReasoning(ReasoningFormat format, absl::string_view prompt,
                     absl::Span<const ByteRange> from_request);
// The same for the mark that ends reasoning: the answer has none.
bool EndsAfterReasoning(ReasoningFormat format, absl::string_view prompt,
                        absl::Span<const ByteRange> from_request);

// Only reasoning at the answer's beginning is found; a mark further back is a part of the content.
// In Harmony all messages of the answer are taken apart; a new line stands between two messages of
// a kind. White space around the marks is dropped, as are the marks. Reasoning that does not end is
// reasoning up to the answer's end. Without a mark, the content is the text as it is.
//
// One per choice; one thread. The text must have the marks, also those that are special tokens. The
// parts are the same however the text is cut.
class ReasoningParser {
 public:
  struct Delta {
    std::string reasoning;
    std::string content;
    bool ends_message = false;  // one of Harmony that is no reasoning; behind the content
  };

  // REQUIRES: `format` is not kNone. `starts_inside`: EndsInReasoning of the prompt. `keeps_calls`:
  // a message of Harmony to a function is content with its header, in the one form that
  // ToolCallParser reads; else its text is.
  ReasoningParser(ReasoningFormat format, bool starts_inside, bool keeps_calls = false);

  Delta Append(absl::string_view text);
  // The answer ends here.
  Delta Finish();

 private:
  enum class State : uint8_t { kStart, kOpened, kReasoning, kAfter, kHeader, kMessage, kContent };

  // Each returns false when it needs more text.
  bool Step(Delta* delta);
  bool StepStart(Delta* delta);
  bool StepReasoning(absl::string_view end, Delta* delta);
  bool StepAfter();
  bool StepHeader(Delta* delta);
  bool StepMessage(Delta* delta);
  void AddReasoning(absl::string_view text, Delta* delta);
  void AddContent(absl::string_view text, Delta* delta);

  bool BeginsAnswer(absl::string_view text) const;

  const ReasoningFormat format_;
  const bool keeps_calls_;
  State state_;
  std::string held_;   // not yet out
  size_t blank_ = 0;   // in StepStart, bytes of it that are known to be white space
  std::string space_;  // that stands between the reasoning that is out and what may follow
  bool has_reasoning_ = false;
  bool has_content_ = false;
  bool first_header_ = true;     // of Harmony
  bool separates_text_ = false;  // the next content begins a further message of Harmony
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_REASONING_H_
