#include "router/request/delta_merging.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/base/stall_watch.h"
#include "router/request/response_sink.h"

namespace baton::router {
namespace {

// Deltas merge up to this size; one alone may be larger, within a bound of its kind, such as that
// of prompt_logprobs. A client must be able to read this much within the limit of a stalled write.
constexpr size_t kMaxMergedBytes = StallWatch::kBytesPerLimit;
// The rest is for what does not grow, and for the first choice's text, which is sent twice.
constexpr size_t kMaxOnceBytes = WholeAnswer::kMaxMessageBytes - (512 << 10);

// Bytes of what adds up over the deltas.
size_t GrowingBytes(const v1::GenerateResponse& delta) {
  constexpr size_t kTagAndLength = 5;
  constexpr size_t kMaxTokenIdBytes = 5;
  size_t bytes = delta.text().size() + kMaxTokenIdBytes * delta.token_ids_size();
  for (const v1::TokenLogprobs& one : delta.logprobs()) bytes += one.ByteSizeLong() + kTagAndLength;
  for (const v1::TokenLogprobs& one : delta.prompt_logprobs()) {
    bytes += one.ByteSizeLong() + kTagAndLength;
  }
  return bytes;
}

// Bytes in memory, where log probabilities take several times what they take on the wire.
int64_t MemoryOf(const v1::GenerateResponse& delta) {
  size_t bytes = delta.text().size() + sizeof(int32_t) * delta.token_ids_size();
  for (const v1::TokenLogprobs& one : delta.logprobs()) bytes += one.SpaceUsedLong();
  for (const v1::TokenLogprobs& one : delta.prompt_logprobs()) bytes += one.SpaceUsedLong();
  return static_cast<int64_t>(bytes);
}

}  // namespace

int64_t PendingDeltas::BytesOf(const v1::GenerateResponse& delta) {
  return static_cast<int64_t>(sizeof(Pending)) + MemoryOf(delta);
}

void PendingDeltas::Pass(const v1::GenerateResponse& delta) {
  if (delta.has_usage()) usage_ = delta.usage();
}

void PendingDeltas::Add(const v1::GenerateResponse& delta) {
  Pass(delta);
  const size_t wire_bytes = GrowingBytes(delta);
  int64_t bytes = MemoryOf(delta);
  const auto same = std::find_if(pending_.rbegin(), pending_.rend(), [&](const Pending& pending) {
    return pending.delta.choice() == delta.choice();
  });
  // The order of the deltas of one choice is its text; the order between choices does not matter.
  if (same == pending_.rend() || same->wire_bytes + wire_bytes > kMaxMergedBytes) {
    bytes += static_cast<int64_t>(sizeof(Pending));
    pending_.push_back({delta, wire_bytes, bytes});
  } else {
    MergeDelta(delta, &same->delta);
    same->wire_bytes += wire_bytes;
    same->bytes += bytes;
  }
  bytes_ += bytes;
}

v1::GenerateResponse PendingDeltas::Next() {
  // The usage of a choice that has waited must not be below that of one that has overtaken it.
  v1::GenerateResponse next = std::move(pending_.front().delta);
  *next.mutable_usage() = usage_;
  bytes_ -= pending_.front().bytes;
  pending_.pop_front();
  return next;
}

void WholeAnswerSize::Add(const v1::GenerateResponse& delta) { bytes_ += GrowingBytes(delta); }

absl::Status WholeAnswerSize::Accepts(const v1::GenerateResponse& delta) const {
  if (bytes_ + GrowingBytes(delta) <= kMaxOnceBytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kOutOfRange, "ANSWER_TOO_LARGE",
                   "the answer is larger than what clients take in one message: expected "
                   "fewer logprobs or choices, or a call of Generate, which streams");
}

void WholeAnswer::Add(const v1::GenerateResponse& delta) {
  size_.Add(delta);
  MergeDelta(delta, &choices_[delta.choice()]);
}

v1::GenerateOnceResponse WholeAnswer::Take(const v1::GenerateResponse& last,
                                           absl::Span<const int> token_counts) {
  Add(last);
  v1::GenerateOnceResponse answer;
  for (auto& [index, whole] : choices_) {
    v1::Choice* choice = answer.add_choices();
    choice->set_text(whole.text());
    *choice->mutable_token_ids() = whole.token_ids();
    choice->set_finish_reason(whole.finish_reason());
    choice->set_matched_stop(whole.matched_stop());
    *choice->mutable_logprobs() = std::move(*whole.mutable_logprobs());
    choice->set_beam_score(whole.beam_score());
    // They came with the first delta, whatever its choice.
    if (!whole.prompt_logprobs().empty()) {
      *answer.mutable_prompt_logprobs() = std::move(*whole.mutable_prompt_logprobs());
    }
    choice->set_generated_tokens(token_counts[index]);
  }
  const v1::GenerateResponse& first = choices_.begin()->second;
  answer.set_text(first.text());
  *answer.mutable_token_ids() = first.token_ids();
  answer.set_finish_reason(first.finish_reason());
  answer.set_matched_stop(first.matched_stop());
  *answer.mutable_usage() = last.usage();
  *answer.mutable_timings() = last.timings();
  answer.set_seed(last.seed());
  answer.set_request_id(last.request_id());
  return answer;
}

}  // namespace baton::router
