// Answers in the shape of OpenAI's completion and chat responses.
#ifndef BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_
#define BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baton/v1/inference.pb.h"
#include "common/chat/tool_calls.h"
#include "common/tokenizer/tokenizer.h"
#include "router/http/answer_format.h"
#include "router/http/answer_parts.h"
#include "router/http/openai_logprobs.h"
#include "router/request/shown_tokens.h"

namespace baton::router {

struct ResponsesRequest;

class OpenAiResponse final : public AnswerFormat {
 public:
  struct Options {
    bool chat = false;
    std::string request_id;
    std::string model;
    uint64_t fingerprint = 0;  // of the model; 0: unknown
    int64_t created = 0;       // Unix time in seconds
    bool include_usage = false;
    bool continuous_usage = false;
    bool logprobs = false;
    AnswerParts::Options parts;  // with chat
    // The request names the tool that is called, so calls are no reason of their own to finish.
    bool calls_named_tool = false;
    int choices_per_prompt = 1;  // with `echo`
    // Special tokens that are a part of the deltas' text; other special tokens are not.
    std::vector<int32_t> shown_special_tokens;
    std::shared_ptr<ResponsesRequest> responses;  // of the Responses API; null for other APIs
  };
  // `tokenizer` must outlive it.
  OpenAiResponse(Options options, const tokenizer::Tokenizer& tokenizer)
      : options_(std::move(options)),
        tokenizer_(tokenizer),
        shown_(tokenizer, options_.shown_special_tokens) {}

  void SetEcho(std::vector<EchoedPrompt> echo) override { echo_ = std::move(echo); }
  void StartInReasoning() override { options_.parts.starts_in_reasoning = true; }
  void Count(const v1::GenerateResponse& delta) override {
    reasoning_tokens_.Add(delta, options_.parts);
  }
  std::string Chunk(const v1::GenerateResponse& delta) override;
  // The usage, if it is wanted, and "[DONE]".
  std::string StreamEnd(const v1::Usage& usage) override;
  std::string StreamError(const absl::Status& error) override;
  // The log probabilities become text here: all at once, they would keep a thread of gRPC from its
  // other calls for a second.
  void Add(const v1::GenerateResponse& delta) override;
  std::string Whole(const v1::Usage& usage) override;
  HttpResponse Error(const absl::Status& error) const override;

 private:
  template <class Json>
  Json Head(const char* object) const;
  using TokenLogprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;
  struct ChoiceState {
    bool begun = false;
    std::optional<OpenAiLogprobs> logprobs;
    std::optional<AnswerParts> parts;  // of chats
    std::string text;                  // set for whole answers only, as is the reason
    v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  };
  AnswerParts& PartsOf(int choice, ChoiceState& state) const;
  bool FinishesWithCalls(const ChoiceState& state) const {
    return state.parts && state.parts->calls() > 0 && !options_.calls_named_tool;
  }
  const char* prompt_field() const { return options_.chat ? "messages" : "prompt"; }
  // If logprobs are wanted, takes those of `delta`, and at the choice's start those of an echoed
  // prompt.
  void AddLogprobs(const v1::GenerateResponse& delta, ChoiceState& state);
  // The prompt of the choice; null if it is not echoed.
  const EchoedPrompt* EchoOf(int choice) const;
  void KeepPromptLogprobs(const v1::GenerateResponse& delta);
  std::string UsageText(const v1::Usage& usage) const;  // JSON

  Options options_;
  const tokenizer::Tokenizer& tokenizer_;
  const ShownTokens shown_;
  std::vector<EchoedPrompt> echo_;
  std::map<int, TokenLogprobs> prompt_logprobs_;  // by prompt, if it is echoed
  std::map<int, ChoiceState> choices_;
  ReasoningTokens reasoning_tokens_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_
