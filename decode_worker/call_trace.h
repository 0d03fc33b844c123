// The spans of one Decode call: the call itself, its wait, its transfers or its own computing of
// the prompt, the first step and decoding. docs/tracing.md lists them.
#ifndef BATON_DECODE_WORKER_CALL_TRACE_H_
#define BATON_DECODE_WORKER_CALL_TRACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "common/tracing/tracer.h"
#include "common/transfer/kv_receiver.h"

namespace baton::decode_worker {

// Exists only for a sampled call. Its service begins it, then it goes with the call; times are of
// the tracer's clock.
class CallTrace {
 public:
  // Null unless there is a tracer and the trace is sampled.
  static std::shared_ptr<CallTrace> Begin(tracing::Tracer* tracer, const TraceContext& trace,
                                          const internal::v1::DecodeRequest& request);

  void Admitted(absl::Duration submitted, absl::Duration now);
  void Preempted(absl::Duration now);
  void Resumed(absl::Duration now);
  // Returns what the Prefill call has to carry. `sequence`: the id of the one that receives.
  TraceContext BeginTransfer(uint64_t sequence, const std::string& worker_id,
                             const std::string& address, absl::Duration now);
  void EndTransfer(uint64_t sequence, const absl::Status& status,
                   const transfer::TransferSummary& summary, absl::Duration now);
  // `computed_at`: when the prompt's KV was complete; nullopt if it is not yet.
  void Tokens(int count, const std::optional<absl::Duration>& computed_at, absl::Duration now);
  // The stream gets its status next. Exports the spans.
  void End(const absl::Status& status);

 private:
  CallTrace(tracing::Tracer& tracer, std::unique_ptr<tracing::RequestSpans> spans)
      : tracer_(tracer), spans_(std::move(spans)) {}

  tracing::Tracer& tracer_;
  const std::unique_ptr<tracing::RequestSpans> spans_;
  std::map<uint64_t, tracing::RequestSpans::Index> transfers_;  // that run
  bool transferred_ = false;  // the prompt's KV came from a prefill worker
  int64_t tokens_ = 0;
  std::optional<absl::Duration> admitted_at_;
  std::optional<absl::Duration> computed_at_;
  std::optional<absl::Duration> first_step_end_;
  absl::Duration last_token_at_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_CALL_TRACE_H_
