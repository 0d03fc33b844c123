// One request inside the router: check, tokenize, choose a pair, relay its tokens, go on with
// another pair when that one is lost, answer once.
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
#include "common/tokenizer/tokenizer.h"
#include "router/fleet/membership.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/admission.h"
#include "router/request/answer.h"
#include "router/request/call_watch.h"
#include "router/request/continuation_line.h"
#include "router/request/decode_stream.h"
#include "router/request/request_check.h"
#include "router/request/response_sink.h"
#include "router/request/retry_budget.h"
#include "router/request/work_pool.h"
#include "router/routing/decision_log.h"

namespace baton::router {

// What all calls share. Everything here outlives every call.
struct RouterParts {
  const Options& options;
  const tokenizer::Tokenizer& tokenizer;
  const Clock& clock;
  Membership& membership;
  RouterMetrics& metrics;
  Admission& admission;
  RetryBudget& retry_budget;
  ContinuationLine& continuations;
  WorkPool& pool;
  CallWatch& watch;
  DecodeNetwork& network;
  DecisionLog& decisions;
};

// Streams in a row that may end without a new token before the request fails.
inline constexpr int kMaxTries = 3;
// Before a stream that was lost is opened anew on the same worker, where there is no other. What
// cut it has then passed, or the worker is known to be gone.
inline constexpr absl::Duration kSameWorkerPause = absl::Milliseconds(500);

// Thread-safe. Shared by those whose events reach it: the client's stream, the tokenizing thread,
// the clock and the workers' streams, which end in any order.
class GenerateCall final : public DecodeListener,
                           public WatchedCall,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  explicit GenerateCall(RouterParts& parts) : parts_(parts), received_(parts.clock.SinceStart()) {}

  // Call once. `sink` gets exactly one Finish or Fail, perhaps before this returns.
  void Start(v1::GenerateRequest request, absl::Time deadline, ResponseSink* sink);
  // As Start, for a request that could not even be parsed.
  void Refuse(const absl::Status& error, ResponseSink* sink);

  // The client has gone. Ends the workers' streams at once.
  void Cancel();
  // Nothing may be said to the sink any more.
  void OnSinkGone();

  void OnDecoded(int stream, const internal::v1::DecodeResponse& response) override;
  void OnStreamEnd(int stream, const grpc::Status& status) override;
  // Gives up on streams that are silent, or whose worker is gone, and on clients that do not read;
  // finds a worker for what waits.
  void OnTick() override;

 private:
  // What streams before the current one did for the same choices.
  struct Past {
    int tries = 0;             // that failed since the last token; a refusal is none
    int refusals = 0;          // by full workers, since the last token
    bool continued = false;    // some of the tokens are theirs
    bool lost_worker = false;  // one of them: it may wait for another, before new requests
    std::string reason;        // why the last one ended
    std::vector<Incarnation> avoid;
    int warm_prefill = kNoWorker;
    std::vector<Route> lost;  // where the decode worker was lost: not to be used again
    std::vector<Route> failed;
    absl::Duration lost_at;               // the last of both
    internal::v1::DecodeTimings timings;  // their sum
  };
  // One stream of a worker, or the wait for one.
  struct Attempt {
    std::vector<int> choices;  // that it is to bring
    bool whole = true;         // sends them from their first tokens on
    Past past;
    Route route;
    DecodeHandle* handle = nullptr;  // while the stream lives
    Answer::Cursor cursor;
    bool heard = false;  // silence counts from the first message: a worker's queue is silent
    absl::Duration last_message;
    int token_messages = 0;
    bool worked = false;
    int ends = 0;  // of its choices, told by the worker
    int64_t kv_bytes = 0;
    absl::Duration sent_at;
    int64_t decision = -1;  // its number in the log
    int cached_tokens = 0;
    internal::v1::DecodeTimings timings;
    // After a refusal for want of room, until a worker has let it in.
    std::optional<ContinuationLine::Hold> hold;
  };
  struct Waiting {
    Attempt attempt;
    absl::Status error;  // why it waits
    absl::Duration not_before;
    // The stream that was lost counts in the retry budget, unless one of these proves dead. Empty:
    // it does not count.
    std::vector<WorkerTarget> suspects;
    std::optional<absl::Duration> unpaid_since;  // the budget has had nothing for it
    std::optional<absl::Duration> alone_since;   // no decode worker has been ready
    ContinuationLine::Place place;
  };

  absl::Status Admit(v1::GenerateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prepare(const v1::GenerateRequest& request);
  // Refuses what would hardly be answered by its deadline.
  absl::Status CheckDeadline(int64_t tokens, int64_t max_tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdmitPrompt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Overloaded(absl::string_view reason, absl::string_view message,
                          absl::Duration retry_after) const;

  // Workers' streams; generate_call_failover.cc, and what waits for one: generate_call_waiting.cc.
  // Takes `attempt` only if it is OK.
  absl::Status Open(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OpenAgain(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What it counts in the retry budget.
  int Sequences(const Attempt& attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(int stream, const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `suspects`: whose death would explain the loss; of a refusal, none. `unheard`: the second
  // stream in a row ended before it was heard of, as if several workers were gone. The last try is
  // to be spent on one that is known to be there.
  void GoOn(std::vector<int> choices, Past past, const absl::Status& error,
            std::vector<WorkerTarget> suspects, bool unheard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether workers have let the request in before, so that it waits for them now.
  bool MayWait(const Past& past) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyLooksDead(const std::vector<WorkerTarget>& suspects) const;
  void NoteCharge(int sequences, const std::vector<WorkerTarget>& suspects);
  void HoldRoom(const absl::Status& refusal, absl::Duration pause, Attempt* attempt) const;
  void FindWorkers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PayForThoseDue(bool survivor, absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitIsOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the client of a pause that its stream lives.
  void SayAlive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RelayTokens(int stream, const internal::v1::DecodeResponse& response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteArrival(Attempt& attempt, int choice, int token_count, bool ends)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(v1::GenerateResponse delta, const Attempt& from, bool end_told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Timings TimingsOf(const Attempt& attempt, bool decode_told) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The sink, for the one answer; afterwards there is none.
  ResponseSink* Ended(absl::StatusCode code, v1::FinishReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RouterParts& parts_;
  const absl::Duration received_;

  absl::Mutex mutex_;
  ResponseSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;      // null once answered
  ResponseSink* answered_ ABSL_GUARDED_BY(mutex_) = nullptr;  // which may still be writing
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);
  std::optional<Admission::Ticket> ticket_ ABSL_GUARDED_BY(mutex_);
  PreparedRequest prepared_ ABSL_GUARDED_BY(mutex_);
  std::optional<Answer> answer_ ABSL_GUARDED_BY(mutex_);
  // By the number of the stream. A number is used once, so what a stream that was given up still
  // says finds nobody.
  std::map<int, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);
  int next_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of all workers that were asked. Streams share the call until they have ended, so the way to a
  // worker is there for as long as its last call.
  std::vector<WorkerHold> holds_ ABSL_GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool id_sent_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Duration> first_token_at_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_sent_at_ ABSL_GUARDED_BY(mutex_);                // anything, to the client
  std::vector<absl::Duration> last_token_at_ ABSL_GUARDED_BY(mutex_);  // by choice
  absl::Duration newest_token_at_ ABSL_GUARDED_BY(mutex_);
  RouterMetrics::TokenGaps gaps_ ABSL_GUARDED_BY(mutex_);
  v1::Usage usage_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_GENERATE_CALL_H_
