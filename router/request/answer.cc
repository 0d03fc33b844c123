#include "router/request/answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::router {
namespace {

namespace decode_pb = ::baton::internal::v1;

TextAssembly::End EndOf(decode_pb::DecodeResponse::Finish finish) {
  return finish == decode_pb::DecodeResponse::FINISH_STOP     ? TextAssembly::End::kStopToken
         : finish == decode_pb::DecodeResponse::FINISH_LENGTH ? TextAssembly::End::kLength
                                                              : TextAssembly::End::kNone;
}

absl::Status Contradiction(absl::string_view message) {
  return MakeError(absl::StatusCode::kInternal, "WORKER_FAILED", message);
}

}  // namespace

Answer::Answer(const tokenizer::Tokenizer& tokenizer, const PreparedRequest& prepared)
    : prepared_(prepared),
      stop_token_ids_(prepared.decode.stop_token_ids().begin(),
                      prepared.decode.stop_token_ids().end()),
      unfinished_(std::max(1, prepared.decode.n())) {
  for (int i = 0; i < unfinished_; ++i) choices_.emplace_back(tokenizer, prepared);
}

std::vector<int> Answer::token_counts() const {
  std::vector<int> counts;
  for (const Choice& choice : choices_) counts.push_back(static_cast<int>(choice.tokens.size()));
  return counts;
}

// How many of the message's tokens, from the `begin`-th of the choice on, are here already.
absl::StatusOr<int> Answer::CountKnown(const decode_pb::DecodeResponse& message, int begin) const {
  const std::vector<int32_t>& tokens = choices_[message.choice()].tokens;
  const int known =
      std::clamp(static_cast<int>(tokens.size()) - begin, 0, message.token_ids_size());
  for (int i = 0; i < known; ++i) {
    if (message.token_ids(i) == tokens[begin + i]) continue;
    return Contradiction(absl::StrCat("token ", begin + i, " of choice ", message.choice(), " is ",
                                      message.token_ids(i), " now and was ", tokens[begin + i]));
  }
  return known;
}

absl::StatusOr<std::optional<v1::GenerateResponse>> Answer::Take(
    const decode_pb::DecodeResponse& message, Cursor* cursor) {
  if (prompt_logprobs_.empty() && !prompt_logprobs_sent_) {
    prompt_logprobs_ = message.prompt_logprobs();
  }
  const bool ends = message.finish() != decode_pb::DecodeResponse::FINISH_UNSPECIFIED;
  if (message.token_ids().empty() && !ends) return std::nullopt;
  if (message.choice() < 0 || message.choice() >= choice_count()) {
    return Contradiction(
        absl::StrCat("tokens of choice ", message.choice(), " of ", choice_count()));
  }
  if (!message.logprobs().empty() && message.logprobs_size() != message.token_ids_size()) {
    return Contradiction(absl::StrCat(message.logprobs_size(), " log probabilities of ",
                                      message.token_ids_size(), " tokens"));
  }
  Choice& choice = choices_[message.choice()];
  if (finished(message.choice())) return std::nullopt;
  if (prepared_.prompt_only) {
    v1::GenerateResponse delta;
    delta.set_choice(message.choice());
    SetFinish(choice, v1::FINISH_REASON_LENGTH, &delta);
    AddPromptLogprobs(&delta);
    return delta;
  }
  int& position = (*cursor)[message.choice()];
  const absl::StatusOr<int> known = CountKnown(message, position);
  if (!known.ok()) return known.status();
  position += message.token_ids_size();

  const bool is_first = choice.tokens.empty();
  const absl::Span<const int32_t> fresh = absl::MakeConstSpan(message.token_ids()).subspan(*known);
  TextAssembly::Piece piece = choice.text.Append(fresh, EndOf(message.finish()));
  const int taken = static_cast<int>(piece.token_ids.size());
  choice.tokens.insert(choice.tokens.end(), piece.token_ids.begin(), piece.token_ids.end());
  generated_tokens_ += taken;

  v1::GenerateResponse delta;
  delta.set_choice(message.choice());
  delta.set_text(std::move(piece.text));
  if (prepared_.return_token_ids) {
    delta.mutable_token_ids()->Assign(piece.token_ids.begin(), piece.token_ids.end());
  }
  for (int i = 0; i < taken && !message.logprobs().empty(); ++i) {
    *delta.add_logprobs() = message.logprobs(*known + i);
  }
  if (choice.text.matched_stop()) {
    delta.set_matched_stop(*choice.text.matched_stop());
    SetFinish(choice, v1::FINISH_REASON_STOP, &delta);
  } else if (ends) {
    const bool stop = message.finish() == decode_pb::DecodeResponse::FINISH_STOP;
    SetFinish(choice, stop ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH, &delta);
  }
  delta.set_beam_score(message.beam_score());
  // The first goes out even if its text is held back: its time is what clients measure.
  const bool shows = (is_first && taken > 0) || finished(message.choice()) ||
                     !delta.text().empty() || !delta.token_ids().empty() ||
                     !delta.logprobs().empty();
  if (!shows) return std::nullopt;
  AddPromptLogprobs(&delta);
  return delta;
}

void Answer::AddPromptLogprobs(v1::GenerateResponse* delta) {
  if (std::exchange(prompt_logprobs_sent_, true)) return;
  *delta->mutable_prompt_logprobs() = std::move(prompt_logprobs_);
}

void Answer::SetFinish(Choice& choice, v1::FinishReason reason, v1::GenerateResponse* delta) {
  choice.finish = reason;
  delta->set_finish_reason(reason);
  --unfinished_;
}

std::optional<v1::GenerateResponse> Answer::EndIfComplete(int index) {
  Choice& choice = choices_[index];
  if (choice.tokens.empty() || finished(index) || is_search()) return std::nullopt;
  const int count = static_cast<int>(choice.tokens.size());
  const bool stop =
      count > prepared_.decode.min_tokens() && stop_token_ids_.contains(choice.tokens.back());
  if (!stop && count < prepared_.decode.max_tokens()) return std::nullopt;
  v1::GenerateResponse delta;
  delta.set_choice(index);
  delta.set_text(choice.text.Append({}, TextAssembly::End::kLength).text);  // what was held back
  if (choice.text.matched_stop()) delta.set_matched_stop(*choice.text.matched_stop());
  const bool stopped = stop || choice.text.matched_stop().has_value();
  SetFinish(choice, stopped ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH, &delta);
  return delta;
}

decode_pb::DecodeRequest Answer::Whole() const {
  decode_pb::DecodeRequest request = prepared_.decode;
  request.set_prompt_tokens(prepared_.decode.tokens_size());
  return request;
}

decode_pb::DecodeRequest Answer::RestOf(int index) const {
  const Choice& choice = choices_[index];
  BATON_CHECK(!finished(index) && !is_search()) << "nothing to continue in choice " << index;
  const int count = static_cast<int>(choice.tokens.size());
  decode_pb::DecodeRequest request = Whole();
  request.mutable_tokens()->Add(choice.tokens.begin(), choice.tokens.end());
  request.mutable_sampling()->set_choice(prepared_.decode.sampling().choice() + index);
  request.set_n(1);
  request.set_max_tokens(prepared_.decode.max_tokens() - count);
  request.set_min_tokens(std::max(0, prepared_.decode.min_tokens() - count));
  if (prompt_logprobs_sent_) request.clear_prompt_logprobs();
  return request;
}

}  // namespace baton::router
