// Answers in the shape of OpenAI's completion and chat responses.
#ifndef BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_
#define BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_

#include <cstdint>
#include <map>
#include <string>

#include "baton/v1/inference.pb.h"
#include "common/tokenizer/tokenizer.h"

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
  };
  // `tokenizer` must outlive it.
  OpenAiResponse(Options options, const tokenizer::Tokenizer& tokenizer)
      : options_(std::move(options)), tokenizer_(tokenizer) {}

  // A server-sent event with what `delta` adds to its choice.
  std::string Chunk(const v1::GenerateResponse& delta);
  // The events after the last delta: the usage, if it is wanted, and "[DONE]".
  std::string StreamEnd(const v1::Usage& usage) const;
  // The whole answer as one JSON object.
  std::string Whole(const v1::GenerateOnceResponse& answer);

 private:
  template <class Json>
  Json Head(const char* object) const;
  template <class Json>
  Json Logprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& tokens, int choice);
  std::string TokenText(int32_t id) const;

  const Options options_;
  const tokenizer::Tokenizer& tokenizer_;
  struct ChoiceState {
    bool begun = false;
    int64_t text_offset = 0;  // of the next token, in characters
  };
  std::map<int, ChoiceState> choices_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_RESPONSE_H_
