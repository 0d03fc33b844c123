// The answer to one request as it grows: its choices, the tokens and the text of each, and what is
// still to be asked of other workers when those that wrote it are lost.
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
#include "router/request/request_check.h"
#include "router/request/text_assembly.h"

namespace baton::router {

// Unsynchronized.
class Answer {
 public:
  // Both must outlive it.
  Answer(const tokenizer::Tokenizer& tokenizer, const PreparedRequest& prepared);

  int choice_count() const { return static_cast<int>(choices_.size()); }
  // Beam search: nothing is known before all is.
  bool is_search() const { return prepared_.decode.beam_width() > 0; }

  // --- What comes.

  // Where a stream of a worker stands in each choice: the index of the next token it will send.
  using Cursor = std::vector<int>;
  // Of a stream that sends all choices from their first token on.
  Cursor AtStart() const { return Cursor(choices_.size(), 0); }
  // Of a stream that continues after what is here.
  Cursor AtEnd() const { return token_counts(); }

  // What a worker's message adds, for the client: text, ids, log probabilities and the end. Nothing
  // if there is nothing to show. Tokens that are here already are compared, not taken twice, and
  // what follows the end of a choice is dropped. INTERNAL, with `reason` WORKER_FAILED, if the
  // message contradicts the request or what is here.
  absl::StatusOr<std::optional<v1::GenerateResponse>> Take(
      const internal::v1::DecodeResponse& message, Cursor* cursor);
  // Ends a choice whose tokens are complete although no worker has said so: the last is a stop
  // token, or there may be no more. Decode workers say so in the message of the last token; this is
  // so that one which does not can neither break an invariant nor be asked for nothing. The text of
  // an ordinary stop token is then in the answer already.
  std::optional<v1::GenerateResponse> EndIfComplete(int choice);

  bool finished(int choice) const {
    return choices_[choice].finish != v1::FINISH_REASON_UNSPECIFIED;
  }
  bool finished() const { return unfinished_ == 0; }
  int generated_tokens() const { return generated_tokens_; }  // of all choices
  std::vector<int> token_counts() const;                      // of each

  // --- What is to be asked.

  // The whole request, for a worker that begins at the beginning.
  internal::v1::DecodeRequest Whole() const;
  // The rest of one choice: its tokens so far follow the prompt. REQUIRES: not finished, nor
  // complete in the sense of EndIfComplete.
  internal::v1::DecodeRequest RestOf(int choice) const;

 private:
  struct Choice {
    Choice(const tokenizer::Tokenizer& tokenizer, const PreparedRequest& prepared)
        : relay(tokenizer, prepared.stops, prepared.decode.min_tokens()) {}
    Relay relay;
    std::vector<int32_t> tokens;
    v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
  };

  absl::StatusOr<int> CountKnown(const internal::v1::DecodeResponse& message, int begin) const;
  void SetFinish(Choice& choice, v1::FinishReason reason, v1::GenerateResponse* delta);

  const PreparedRequest& prepared_;
  const absl::flat_hash_set<int32_t> stop_token_ids_;
  std::deque<Choice> choices_;  // which cannot be moved
  int unfinished_;
  int generated_tokens_ = 0;
  // Come with a worker's first message, and go out with the first tokens.
  google::protobuf::RepeatedPtrField<v1::TokenLogprobs> prompt_logprobs_;
  bool prompt_logprobs_sent_ = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ANSWER_H_
