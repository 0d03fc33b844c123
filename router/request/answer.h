// The answer to one request as it grows: the tokens and the text of each choice, and the request
// for the rest of it when a worker is lost.
#ifndef BATON_ROUTER_REQUEST_ANSWER_H_
#define BATON_ROUTER_REQUEST_ANSWER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "baton/internal/v1/decode.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/tokenizer/tokenizer.h"
#include "router/request/prepared_request.h"
#include "router/request/text_assembly.h"

namespace baton::router {

// Unsynchronized.
class Answer {
 public:
  // Both must outlive it.
  Answer(const tokenizer::Tokenizer& tokenizer, const PreparedRequest& prepared);

  int choice_count() const { return static_cast<int>(choices_.size()); }
  // Beam search: all choices arrive at the end, together.
  bool is_search() const { return prepared_.decode.beam_width() > 0; }

  // --- Messages of workers.

  // For each choice, the index of the next token that a worker's stream will send.
  using Cursor = std::vector<int>;
  // For a stream that sends all choices from their first token on.
  Cursor AtStart() const { return Cursor(choices_.size(), 0); }
  // For a stream that continues after the tokens so far.
  Cursor AtEnd() const { return token_counts(); }

  // What a worker's message adds for the client: text, ids, log probabilities and the end; nothing
  // if the client gets nothing. Tokens that were received before are compared, not added twice, and
  // tokens after the end of a choice are dropped. INTERNAL, with `reason` WORKER_FAILED, if the
  // message contradicts the request or the tokens so far.
  absl::StatusOr<std::optional<v1::GenerateResponse>> Take(
      const internal::v1::DecodeResponse& message, Cursor* cursor);
  // Ends a choice whose tokens are complete although no worker has sent a finish: the last is a
  // stop token, or max_tokens is reached. Decode workers send the finish with the last token; a
  // lost worker that did not must not lead to a request for zero tokens. The text of an ordinary
  // stop token is then in the answer already.
  std::optional<v1::GenerateResponse> EndIfComplete(int choice);

  bool finished(int choice) const {
    return choices_[choice].finish != v1::FINISH_REASON_UNSPECIFIED;
  }
  bool finished() const { return unfinished_ == 0; }
  int generated_tokens() const { return generated_tokens_; }  // of all choices
  std::vector<int> token_counts() const;                      // of each

  // --- Requests to workers.

  // The whole request.
  internal::v1::DecodeRequest Whole() const;
  // The rest of one choice: its tokens so far follow the prompt. REQUIRES: not finished, nor
  // complete in the sense of EndIfComplete.
  internal::v1::DecodeRequest RestOf(int choice) const;

 private:
  struct Choice {
    Choice(const tokenizer::Tokenizer& tokenizer, const PreparedRequest& prepared)
        : text(tokenizer, prepared.stops, prepared.decode.min_tokens(),
               prepared.shown_special_tokens) {}
    TextAssembly text;
    std::vector<int32_t> tokens;
    v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
  };

  absl::StatusOr<int> CountKnown(const internal::v1::DecodeResponse& message, int begin) const;
  void SetFinish(Choice& choice, v1::FinishReason reason, v1::GenerateResponse* delta);
  void AddPromptLogprobs(v1::GenerateResponse* delta);

  const PreparedRequest& prepared_;
  const absl::flat_hash_set<int32_t> stop_token_ids_;
  std::deque<Choice> choices_;  // which cannot be moved
  int unfinished_;
  int generated_tokens_ = 0;
  // From a worker's first message; sent to the client with the first tokens.
  google::protobuf::RepeatedPtrField<v1::TokenLogprobs> prompt_logprobs_;
  bool prompt_logprobs_sent_ = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ANSWER_H_
