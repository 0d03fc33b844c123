// Where a request's answer goes: a stream, or one message.
#ifndef BATON_ROUTER_RESPONSE_SINK_H_
#define BATON_ROUTER_RESPONSE_SINK_H_

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

// Any number of Sends, then one of Finish and Fail, after which the sink may be gone. Never blocks.
// Calls come one at a time.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void Send(const v1::GenerateResponse& delta) = 0;
  virtual void Finish(const v1::GenerateResponse& last) = 0;
  virtual void Fail(const absl::Status& error) = 0;
};

// Appends what `delta` adds; of usage and the end, the newer stands.
inline void MergeDelta(const v1::GenerateResponse& delta, v1::GenerateResponse* into) {
  // Usage and timings are cumulative and complete: merging field by field is overwriting.
  into->mutable_text()->append(delta.text());
  into->mutable_token_ids()->MergeFrom(delta.token_ids());
  if (delta.has_usage()) *into->mutable_usage() = delta.usage();
  if (delta.has_timings()) *into->mutable_timings() = delta.timings();
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    into->set_finish_reason(delta.finish_reason());
    into->set_matched_stop(delta.matched_stop());
    into->set_seed(delta.seed());
  }
  if (!delta.request_id().empty()) into->set_request_id(delta.request_id());
}

}  // namespace baton::router

#endif  // BATON_ROUTER_RESPONSE_SINK_H_
