// Answers in the shape of OpenAI's Responses API: a response object, or a stream of its events.
#ifndef BATON_ROUTER_HTTP_RESPONSES_ANSWER_H_
#define BATON_ROUTER_HTTP_RESPONSES_ANSWER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "baton/v1/inference.pb.h"
#include "common/chat/tool_calls.h"
#include "common/tokenizer/tokenizer.h"
#include "router/http/answer_format.h"
#include "router/http/answer_parts.h"
#include "router/http/openai_logprobs.h"
#include "router/http/openai_response.h"
#include "router/http/responses_request.h"
#include "router/request/shown_tokens.h"

namespace baton::router {

// The output is a list of items in the order of the model's text: reasoning, messages, and calls of
// functions. Items, their texts and their ids do not depend on how the text is cut into deltas.
class ResponsesAnswer final : public AnswerFormat {
 public:
  // `tokenizer` must outlive it. REQUIRES: options.responses, and one choice.
  ResponsesAnswer(OpenAiResponse::Options options, const tokenizer::Tokenizer& tokenizer);

  void SetEcho(std::vector<EchoedPrompt>) override {}  // this API repeats no prompt
  void StartInReasoning() override { options_.parts.starts_in_reasoning = true; }
  void Count(const v1::GenerateResponse& delta) override {
    reasoning_tokens_.Add(delta, options_.parts);
  }
  std::string Chunk(const v1::GenerateResponse& delta) override;
  std::string StreamEnd(const v1::Usage& usage) override;
  std::string StreamError(const absl::Status& error) override;
  void Add(const v1::GenerateResponse& delta) override;
  std::string Whole(const v1::Usage& usage) override;
  HttpResponse Error(const absl::Status& error) const override;

 private:
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind;
    std::string id;
    std::string text;       // of reasoning and messages; of a call, its arguments
    chat::AnswerPart call;  // of kCall: its id and name
    std::string logprobs;   // entries of a whole answer's message: JSON, with commas between them
    bool is_whole = false;  // it has ended by itself
  };

  std::string Id(absl::string_view prefix, uint64_t salt) const;
  // JSON. `status`: in_progress, completed or incomplete. An item in progress has no text yet.
  std::string ItemJson(const Item& item, absl::string_view status) const;
  std::string PartJson(const Item& item, bool with_text) const;
  const NamespacedName* NamespacedOf(const Item& item) const;
  std::string NameJson(const Item& item) const;
  std::string ResponseJson(absl::string_view status, const v1::Usage* usage,
                           const absl::Status& error) const;
  // Adds an event of a stream; `members`: JSON, `"name":value`, with commas between them.
  void Emit(absl::string_view type, absl::string_view members);
  void EmitOfItem(absl::string_view type, absl::string_view members);

  void Begin();  // of a stream
  void Read(const v1::GenerateResponse& delta);
  void AddPart(chat::AnswerPart part);
  void AddText(Kind kind, absl::string_view text);
  void Open(Kind kind, std::string id, chat::AnswerPart call = {});
  void SendText();  // what the open item's text has gained
  void Close(bool is_whole);
  // Closes the last item, once the text has ended, and has the response kept. Returns it.
  std::string Finish(const v1::Usage& usage);

  OpenAiResponse::Options options_;
  const ShownTokens shown_;
  const std::string id_;
  std::optional<AnswerParts> parts_;  // once the text begins
  std::optional<OpenAiLogprobs> logprobs_;
  ReasoningTokens reasoning_tokens_;
  std::vector<Item> items_;
  bool open_ = false;       // the last item grows
  bool truncated_ = false;  // the answer has ended by its length
  bool streams_ = false;
  size_t sent_ = 0;  // bytes of the open item's text that are in events
  int64_t sequence_ = 0;
  std::string events_;  // of the current call
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_RESPONSES_ANSWER_H_
