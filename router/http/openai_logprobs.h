// The log probabilities of one choice in OpenAI's shapes. Their lists describe the text that is
// returned: entries arrive with the text of their tokens, and what a stop cuts from the text has no
// entry. A token whose beginning is in the text is there as a whole. Special tokens, which leave no
// text, have entries too.
#ifndef BATON_ROUTER_HTTP_OPENAI_LOGPROBS_H_
#define BATON_ROUTER_HTTP_OPENAI_LOGPROBS_H_

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"
#include "common/tokenizer/token_positions.h"
#include "common/tokenizer/tokenizer.h"
#include "router/request/shown_tokens.h"

namespace baton::router {

// A prompt that begins the text of its choices.
struct EchoedPrompt {
  std::string text;
  // These are set if log probabilities are wanted: the first token, which has none, and where each
  // token begins in `text`, in characters.
  std::optional<int32_t> first_token;
  std::vector<int64_t> offsets;
};

// A prompt given as ids, whose text has no special tokens. With `logprobs` it has offsets.
EchoedPrompt EchoIds(const tokenizer::Tokenizer& tokenizer, absl::Span<const int32_t> ids,
                     bool logprobs);
// A prompt given as text, with log probabilities. `ids`: what Encode makes of it. Its text is that
// of the ids, which a normalizer may have changed, so that the lists describe it.
EchoedPrompt EchoText(const tokenizer::Tokenizer& tokenizer, const std::string& text,
                      absl::Span<const int32_t> ids, bool add_special_tokens);

// Unsynchronized.
class OpenAiLogprobs {
 public:
  using Tokens = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

  // Both must outlive it. `chat`: the shape of chat completions, else that of completions.
  OpenAiLogprobs(const tokenizer::Tokenizer& tokenizer, const ShownTokens& shown, bool chat);

  // `tokens`: the prompt's from the second on. Call it before the first Add, and not for chat.
  void AddPrompt(const EchoedPrompt& prompt, const Tokens& tokens);
  // Takes the text and the tokens of the answer's next delta, whose text may come with a later one.
  void Add(const v1::GenerateResponse& delta);

  bool empty() const { return entries_ == 0; }
  // The entries since the last call, as the field `logprobs`: the text of a JSON object.
  std::string Take();
  // The same, as the elements of its list `content`, with commas between them. For chat only.
  std::string TakeEntries();

 private:
  using Json = nlohmann::ordered_json;

  bool IsInText(int32_t id, int64_t begin) const;
  void AddEntry(const v1::TokenLogprobs& token, int64_t begin);
  void AddListed(const std::string& name, const Json& logprob, const Json& top, int64_t offset);
  Json ChatEntry(int32_t id, float logprob) const;
  Json TopOfCompletion(const v1::TokenLogprobs& token) const;
  // The token as text; "bytes:\xf0\x9f" if its bytes are no whole characters, "token_id:5" without
  // a token.
  std::string Name(int32_t id) const;

  const tokenizer::Tokenizer& tokenizer_;
  const ShownTokens& shown_;
  const bool chat_;
  int64_t prompt_characters_ = 0;
  tokenizer::TokenPositions positions_;   // positions in the answer
  std::vector<int64_t> known_positions_;  // positions of the first of `waiting_`
  std::deque<v1::TokenLogprobs> waiting_;
  int64_t characters_ = 0;  // characters of the answer's text that were returned
  int entries_ = 0;
  // The elements of each list as JSON, separated by commas. A whole answer has megabytes of them,
  // which take many times as much memory as values, and a second to write at once.
  std::string content_;  // for chat
  std::string tokens_, token_logprobs_, top_logprobs_, text_offset_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_LOGPROBS_H_
