// Where a request's answer goes: a stream, or one message.
#ifndef BATON_ROUTER_REQUEST_RESPONSE_SINK_H_
#define BATON_ROUTER_REQUEST_RESPONSE_SINK_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

// Any number of Sends, then one of Finish and Fail. The sink is there until it has told the call
// that it is gone (GenerateCall::OnSinkGone), which it does not before that one. Never blocks.
// Calls come one at a time. Each choice has a last message of its own, with its finish reason; that
// of the choice that ends last is the one given to Finish.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void Send(const v1::GenerateResponse& delta) = 0;
  // Between Sends: nothing is new, but the request lives. `empty` adds nothing to what was sent.
  virtual void Heartbeat(const v1::GenerateResponse& empty) {}
  // False if the answer, with this, would be more than a client can take.
  virtual bool Fits(const v1::GenerateResponse& delta) const { return true; }
  // `token_counts`: how many tokens each choice has.
  virtual void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) = 0;
  virtual void Fail(const absl::Status& error) = 0;
  // After one of those two, and at most once: nobody reads what was written, and the time for it is
  // over.
  virtual void Abort() {}
};

// Appends what `delta` adds to the same choice; of usage and the end, the newer stands.
inline void MergeDelta(const v1::GenerateResponse& delta, v1::GenerateResponse* into) {
  // Usage and timings are cumulative and complete: merging field by field is overwriting.
  into->set_choice(delta.choice());
  into->mutable_text()->append(delta.text());
  into->mutable_token_ids()->MergeFrom(delta.token_ids());
  into->mutable_logprobs()->MergeFrom(delta.logprobs());
  into->mutable_prompt_logprobs()->MergeFrom(delta.prompt_logprobs());
  if (delta.has_usage()) *into->mutable_usage() = delta.usage();
  if (delta.has_timings()) *into->mutable_timings() = delta.timings();
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    into->set_finish_reason(delta.finish_reason());
    into->set_matched_stop(delta.matched_stop());
    into->set_seed(delta.seed());
    into->set_beam_score(delta.beam_score());
  }
  if (!delta.request_id().empty()) into->set_request_id(delta.request_id());
}

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_RESPONSE_SINK_H_
