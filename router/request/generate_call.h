// One request inside the router: receive, check, route, relay, end. A request that loses its pair
// of workers continues on another one.
#ifndef BATON_ROUTER_REQUEST_GENERATE_CALL_H_
#define BATON_ROUTER_REQUEST_GENERATE_CALL_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/base/clock.h"
#include "router/metrics.h"
#include "router/request/access.h"
#include "router/request/answer.h"
#include "router/request/attempt.h"
#include "router/request/call_registry.h"
#include "router/request/call_watch.h"
#include "router/request/continuation_line.h"
#include "router/request/decode_network.h"
#include "router/request/entrance.h"
#include "router/request/prepared_request.h"
#include "router/request/request_class.h"
#include "router/request/request_trace.h"
#include "router/request/response_sink.h"
#include "router/request/router_parts.h"

namespace baton::router {

// Thread-safe. Shared by the sources of its events: the client's stream, the tokenizing thread, the
// clock and the workers' streams, which end in any order.
class GenerateCall final : public DecodeListener,
                           public WatchedCall,
                           public CancellableCall,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  explicit GenerateCall(RouterParts& parts, Caller caller = {});

  // Special tokens that are part of the text; by default there are none. Before Start.
  void ShowSpecialTokens(std::vector<int32_t> ids);
  // That process is to compute the prompt, so that it caches it. Before Start.
  void ComputeOn(const Incarnation& process);
  // Tells the trace when a chat's messages became the prompt, of which truncation has dropped so
  // many tokens. Before Start.
  void Rendered(absl::Duration begin, absl::Duration end, int dropped_tokens);
  // Call once. `sink` gets exactly one Finish or Fail, possibly before this returns.
  void Start(v1::GenerateRequest request, absl::Time deadline, ResponseSink* sink);
  // As Start, for a request that could not even be parsed.
  void Refuse(const absl::Status& error, ResponseSink* sink);

  // The client is gone. Ends the workers' streams at once.
  void Cancel();
  bool EndWith(const absl::Status& error) override;
  // The sink must not be called any more.
  void OnSinkGone();

  void OnDecoded(int stream, const internal::v1::DecodeResponse& response) override;
  void OnStreamEnd(int stream, const grpc::Status& status) override;
  // Gives up streams that are silent or whose worker is gone, and clients that do not read; opens
  // streams for waiting attempts.
  void OnTick() override;

 private:
  // An attempt that has no stream yet.
  struct WaitingAttempt {
    Attempt attempt;
    ContinuationLine::Place place;
  };

  // --- Check and route: generate_call.cc.
  absl::Status Admit(v1::GenerateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prepare(v1::GenerateRequest request);
  absl::Status AdmitPrompt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Streams to workers, and their losses: generate_call_failover.cc.
  // Consumes `attempt` only if it is OK.
  absl::Status Open(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OpenAgain(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why a stream is to be given up; OK while there is no reason.
  absl::Status CheckStream(const Attempt& attempt, absl::Duration now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How many sequences the attempt counts for in the retry budget.
  int Sequences(const Attempt& attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAttemptLost(int stream, const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Attempts at the choices that still lack tokens: one at all of them, or one at each. Ends the
  // other choices, and perhaps the request.
  std::vector<Attempt> AttemptsAfter(const Attempt& attempt, const StreamEnd& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The attempts follow one that has ended. They get a stream, or wait for one.
  void RetryElsewhere(std::vector<Attempt> next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps new requests out for an attempt that was refused for want of room.
  void HoldRoom(Attempt* attempt) const;

  // Gives up a client that does not read.
  void CheckReader(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Attempts that wait: generate_call_waiting.cc.
  // Opens the first stream. If no worker is ready but one is likely to be soon, the attempt is
  // tried again at the next tick; for any other error the request fails.
  void OpenFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One attempt that waits for too long fails the request.
  void OpenWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends an empty message to a client whose answer pauses.
  void SendHeartbeat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Relay and end: generate_call.cc.
  void RelayTokens(int stream, const internal::v1::DecodeResponse& response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordTokens(Attempt& attempt, int choice, int token_count, bool ends)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(v1::GenerateResponse delta, const Attempt& from, bool end_reported)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Timings TimingsOf(const Attempt& attempt, bool decode_reported) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The request is answered: counts whether its class' targets were met.
  void CountSlos(int longest_choice_tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cancels what still runs. Returns the sink, for the one answer; afterwards there is none.
  ResponseSink* End(absl::StatusCode code, v1::FinishReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Declared first, so destroyed last: the router may be gone as soon as its ticket is.
  Entrance entrance_ ABSL_GUARDED_BY(mutex_);
  RouterParts& parts_;
  const RetryContext retry_;
  const Caller caller_;
  const absl::Duration received_;

  absl::Mutex mutex_;
  ResponseSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;      // null once answered
  ResponseSink* answered_ ABSL_GUARDED_BY(mutex_) = nullptr;  // it may still be writing
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  RequestTrace trace_ ABSL_GUARDED_BY(mutex_);
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> shown_special_tokens_ ABSL_GUARDED_BY(mutex_);
  CallRegistry::Entry registered_ ABSL_GUARDED_BY(mutex_);  // while admitted and not answered
  // The process that is to compute the prompt; no worker: any.
  Incarnation only_ ABSL_GUARDED_BY(mutex_) = {kNoWorker, 0};
  RequestClass class_ ABSL_GUARDED_BY(mutex_);
  int dropped_prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // with messages
  PreparedRequest prepared_ ABSL_GUARDED_BY(mutex_);
  std::optional<Answer> answer_ ABSL_GUARDED_BY(mutex_);
  std::optional<Attempt> first_ ABSL_GUARDED_BY(mutex_);  // until it has a stream
  // The key is the stream's id. Ids are never reused, so late messages of a stream that was given
  // up are dropped.
  std::map<int, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);
  int next_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  // The holds of all workers that were asked. Streams share the call until they have ended, so the
  // channel to a worker outlives the last stream.
  std::vector<WorkerHold> holds_ ABSL_GUARDED_BY(mutex_);
  std::vector<WaitingAttempt> waiting_ ABSL_GUARDED_BY(mutex_);
  bool id_sent_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Duration> first_token_at_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_sent_at_ ABSL_GUARDED_BY(mutex_);  // to the client
  struct Tokens {
    int count = 0;
    absl::Duration last_at;
  };
  std::vector<Tokens> tokens_ ABSL_GUARDED_BY(mutex_);  // by choice
  absl::Duration newest_token_at_ ABSL_GUARDED_BY(mutex_);
  RouterMetrics::TokenGaps gaps_ ABSL_GUARDED_BY(mutex_);
  v1::Usage usage_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::CacheMiss> cache_miss_ ABSL_GUARDED_BY(mutex_);  // for the last message
  bool prompt_remembered_ ABSL_GUARDED_BY(mutex_) = false;           // by PromptHistory
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_GENERATE_CALL_H_
