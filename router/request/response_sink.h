// Where a request's answer goes: a stream, or one message.
#ifndef BATON_ROUTER_REQUEST_RESPONSE_SINK_H_
#define BATON_ROUTER_REQUEST_RESPONSE_SINK_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

// Gets any number of Sends, then one Finish or Fail, one call at a time. Never blocks. The sink
// lives until it calls GenerateCall::OnSinkGone, which it does after Finish or Fail. Each choice
// ends with a message that has its finish reason; that of the last choice to end is given to
// Finish.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void Send(const v1::GenerateResponse& delta) = 0;
  // Between Sends: the request is alive, without news. `empty` adds nothing to what was sent.
  virtual void Heartbeat(const v1::GenerateResponse& empty) {}
  // An error if the answer with `delta` would be larger than a client can take, or if too much
  // would wait for the client: the request ends with that error.
  virtual absl::Status Accepts(const v1::GenerateResponse& delta) const { return absl::OkStatus(); }
  // `token_counts`: how many tokens each choice has.
  virtual void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) = 0;
  virtual void Fail(const absl::Status& error) = 0;
  // The call asks this several times a second, until GenerateCall::OnSinkGone. True once the client
  // has read nothing of what is being written for too long. Sinks whose connection watches that
  // itself return false.
  virtual bool Stalled(absl::Duration now) { return false; }
  // The client has not read the answer in time. Called after Finish or Fail, and at most once.
  // `why`: the error that ends the answer.
  virtual void Abort(const absl::Status& why) {}
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
