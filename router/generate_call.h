// One request inside the router: check, tokenize, choose a pair, relay its tokens, answer once.
#ifndef BATON_ROUTER_GENERATE_CALL_H_
#define BATON_ROUTER_GENERATE_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.grpc.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/base/clock.h"
#include "common/tokenizer/tokenizer.h"
#include "router/admission.h"
#include "router/decode_stream.h"
#include "router/membership.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/relay.h"
#include "router/request_check.h"
#include "router/response_sink.h"
#include "router/work_pool.h"

namespace baton::router {

// What all calls share. Everything here outlives every call.
struct RouterParts {
  const Options& options;
  const tokenizer::Tokenizer& tokenizer;
  const Clock& clock;
  Membership& membership;
  RouterMetrics& metrics;
  Admission& admission;
  WorkPool& pool;
  // Numbered as in `membership`.
  const std::vector<std::unique_ptr<internal::v1::DecodeService::Stub>>& decode_stubs;
};

// Thread-safe. Shared by those whose events reach it: the client's stream, the tokenizing thread
// and the worker's stream, which end in any order.
class GenerateCall final : public DecodeStream::Listener,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  explicit GenerateCall(RouterParts& parts) : parts_(parts), received_(parts.clock.SinceStart()) {}

  // Call once. `sink` gets exactly one Finish or Fail, perhaps before this returns.
  void Start(v1::GenerateRequest request, absl::Time deadline, ResponseSink* sink);
  // As Start, for a request that could not even be parsed.
  void Refuse(const absl::Status& error, ResponseSink* sink);

  // The client has gone. Ends the worker's stream at once.
  void Cancel();

  void OnDecoded(const internal::v1::DecodeResponse& response) override;
  void OnStreamEnd(const grpc::Status& status) override;

 private:
  absl::Status Admit(v1::GenerateRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prepare(const v1::GenerateRequest& request);
  absl::Status Dispatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TryAnotherPair(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RelayTokens(const internal::v1::DecodeResponse& response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Overloaded(absl::string_view reason, absl::string_view message) const;
  void NoteArrival(int token_count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(v1::FinishReason reason, v1::GenerateResponse last,
              const internal::v1::DecodeTimings& timings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The sink, for the one answer; afterwards there is none.
  ResponseSink* Ended(absl::StatusCode code, v1::FinishReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RouterParts& parts_;
  const absl::Duration received_;

  absl::Mutex mutex_;
  ResponseSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null once answered
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);
  std::optional<Admission::Ticket> ticket_ ABSL_GUARDED_BY(mutex_);
  PreparedRequest prepared_ ABSL_GUARDED_BY(mutex_);
  std::optional<Relay> relay_ ABSL_GUARDED_BY(mutex_);
  DecodeStream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // while it lives
  Route route_ ABSL_GUARDED_BY(mutex_);                     // of the current attempt
  bool retried_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Duration> first_token_at_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_token_at_ ABSL_GUARDED_BY(mutex_);
  v1::Usage usage_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_GENERATE_CALL_H_
