// Answers in the shape of OpenAI's completion and chat responses.
#ifndef BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_
#define BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baton/v1/inference.pb.h"
#include "common/chat/tool_calls.h"
#include "common/tokenizer/tokenizer.h"
#include "router/http/openai_logprobs.h"
#include "router/request/shown_tokens.h"

namespace baton::router {

// Formats one request's answer. Unsynchronized.
class OpenAiResponse {
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
    // With chat, the calls in the text become the field `tool_calls`, unless it is kUnsupported.
    chat::ToolCallFormat tool_calls = chat::ToolCallFormat::kUnsupported;
    bool parallel_tool_calls = true;  // else only the first call of a choice is returned
    uint64_t call_id_seed = 0;        // random
    int choices_per_prompt = 1;       // with `echo`
    // Special tokens that are a part of the deltas' text; other special tokens are not.
    std::vector<int32_t> shown_special_tokens;
  };
  // `tokenizer` must outlive it.
  OpenAiResponse(Options options, const tokenizer::Tokenizer& tokenizer)
      : options_(std::move(options)),
        tokenizer_(tokenizer),
        shown_(tokenizer, options_.shown_special_tokens) {}

  // One for each prompt; before the first delta.
  void SetEcho(std::vector<EchoedPrompt> echo) { echo_ = std::move(echo); }

  // A server-sent event with what `delta` adds to its choice; empty if it adds nothing yet, because
  // its text may be the beginning of a tool call or of a stop string.
  std::string Chunk(const v1::GenerateResponse& delta);
  // The events after the last delta: the usage, if it is wanted, and "[DONE]".
  std::string StreamEnd(const v1::Usage& usage) const;
  // Takes the next delta of an answer that is sent whole. The log probabilities become text here:
  // all at once, they would keep a thread of gRPC from its other calls for a second.
  void Add(const v1::GenerateResponse& delta);
  // The whole answer as one JSON object, once all deltas were added. Call it once.
  std::string Whole(const v1::Usage& usage);

 private:
  template <class Json>
  Json Head(const char* object) const;
  using TokenLogprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;
  struct ChoiceState {
    bool begun = false;
    std::optional<OpenAiLogprobs> logprobs;
    std::optional<chat::ToolCallParser> parser;
    int calls = 0;
    std::string text;  // set for whole answers only, as is the reason
    v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  };
  // Text and calls that more text completes. `ends`: it is the last.
  chat::ToolCallParser::Delta ContentOf(int choice, const std::string& text, bool ends,
                                        ChoiceState& state) const;
  template <class Json>
  static Json CallsJson(const std::vector<chat::ToolCall>& calls, const int* first_index);
  // If logprobs are wanted, takes those of `delta`, and at the choice's start those of an echoed
  // prompt.
  void AddLogprobs(const v1::GenerateResponse& delta, ChoiceState& state);
  // The prompt of the choice; null if it is not echoed.
  const EchoedPrompt* EchoOf(int choice) const;
  void KeepPromptLogprobs(const v1::GenerateResponse& delta);

  const Options options_;
  const tokenizer::Tokenizer& tokenizer_;
  const ShownTokens shown_;
  std::vector<EchoedPrompt> echo_;
  std::map<int, TokenLogprobs> prompt_logprobs_;  // by prompt, if it is echoed
  std::map<int, ChoiceState> choices_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_
