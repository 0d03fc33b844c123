// Answers in the shape of Anthropic's messages.
#ifndef BATON_ROUTER_HTTP_ANTHROPIC_RESPONSE_H_
#define BATON_ROUTER_HTTP_ANTHROPIC_RESPONSE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baton/v1/inference.pb.h"
#include "common/chat/tool_calls.h"
#include "router/http/answer_format.h"
#include "router/http/answer_parts.h"

namespace baton::router {

// An answer has one choice, whose content is a list of blocks: what the model thinks, text, and
// calls of tools, in the order in which the model writes them.
class AnthropicResponse final : public AnswerFormat {
 public:
  struct Options {
    std::string request_id;
    std::string model;
    AnswerParts::Options parts;
  };
  explicit AnthropicResponse(Options options) : options_(std::move(options)) {}

  // The API repeats no prompts.
  void SetEcho(std::vector<EchoedPrompt>) override {}
  void StartInReasoning() override { options_.parts.starts_in_reasoning = true; }
  std::string Chunk(const v1::GenerateResponse& delta) override;
  std::string StreamEnd(const v1::Usage& usage) override;
  std::string StreamError(const absl::Status& error) override;
  void Add(const v1::GenerateResponse& delta) override;
  std::string Whole(const v1::Usage& usage) override;
  HttpResponse Error(const absl::Status& error) const override;

 private:
  enum class Kind { kNone, kThinking, kText, kCall };
  static Kind KindOf(const chat::AnswerPart& part);
  // The parts that more text completes.
  std::vector<chat::AnswerPart> Take(absl::string_view text, bool ends);
  void KeepEnd(const v1::GenerateResponse& delta);
  // Each appends the events of a stream.
  void Begin(const v1::Usage& usage, std::string* events);
  void Write(const chat::AnswerPart& part, std::string* events);
  void CloseBlock(std::string* events);
  // JSON. `content`: of the blocks, separated by commas.
  std::string Message(absl::string_view content, const v1::Usage& usage) const;
  std::string StopMembers() const;

  Options options_;
  std::optional<AnswerParts> parts_;  // set by Take
  std::string text_;                  // of a whole answer
  bool begun_ = false;
  Kind open_ = Kind::kNone;  // the block of a stream that more pieces may be added to
  int index_ = 0;            // of that block, or of the next one
  v1::FinishReason finish_reason_ = v1::FINISH_REASON_UNSPECIFIED;
  std::string matched_stop_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_ANTHROPIC_RESPONSE_H_
