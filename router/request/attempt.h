// One attempt to have choices of a request generated: a Decode stream to one pair of workers, and
// what the attempts before it came to.
#ifndef BATON_ROUTER_REQUEST_ATTEMPT_H_
#define BATON_ROUTER_REQUEST_ATTEMPT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "router/request/answer.h"
#include "router/request/continuation_line.h"
#include "router/request/decode_network.h"
#include "router/request/loss_record.h"
#include "router/routing/route.h"

namespace baton::router {

// A worker that has let a request in sends a message within this time.
inline constexpr absl::Duration kAnswerTime = absl::Seconds(1);

// What the earlier attempts at the same choices came to. "In a row" is since the last token.
struct RetryState {
  LossRecord losses;         // in a row; refusals do not count
  int drains = 0;            // refusals by draining workers in a row, which are no losses
  int refusals = 0;          // in a row, by full workers
  bool continued = false;    // some of the tokens are of an earlier attempt
  bool lost_worker = false;  // an earlier attempt was lost with its worker
  std::string reason;        // why the last attempt ended
  std::vector<Incarnation> avoid;
  int warm_worker = kNoWorker;          // has computed the prompt, and did not answer
  std::vector<Route> lost;              // their workers that answered are not asked again
  std::vector<Route> failed;            // not asked again
  absl::Duration lost_at;               // the last loss
  internal::v1::DecodeTimings timings;  // sum over the attempts

  // The current attempt has brought tokens: earlier failures count no more.
  void OnTokens();
  // Every worker may be asked again.
  void ForgetWorkers();
};

// Unsynchronized.
struct Attempt {
  std::vector<int> choices;  // to be generated
  bool whole = true;         // from their first tokens on; else the rest of the one choice
  RetryState past;
  Route route;
  DecodeHandle* handle = nullptr;  // while the stream lives
  Answer::Cursor cursor;
  // Silence counts from the first message on: a request in a worker's queue is silent.
  bool heard = false;
  absl::Duration last_message;
  int token_messages = 0;
  bool worked = false;  // the planner knows that the pair works
  int ends = 0;         // finishes that the worker reported
  int64_t kv_bytes = 0;
  absl::Duration sent_at;           // when it was sent, by RouterParts::clock
  absl::Duration sent_at_awake;     // when it was sent, by RouterParts::awake
  std::optional<int64_t> decision;  // number in the decision log
  int cached_tokens = 0;
  internal::v1::DecodeTimings timings;
  // From a refusal for want of room to the first message of a worker.
  std::optional<ContinuationLine::Hold> hold;

  // A message of the worker has come. Returns by how many bytes of moved KV it reports more.
  int64_t OnMessage(const internal::v1::DecodeResponse& response, absl::Duration now);
  // The worker has been silent for longer than `bound`.
  bool Stalled(absl::Duration now, absl::Duration bound) const {
    return heard && now - last_message > bound;
  }
  // What the next attempt has to know, after this one ended with `error`, for which `blame` holds.
  RetryState PastAfter(const absl::Status& error, Blame blame, const WorkerSigns& signs,
                       absl::Duration now) const;
  // Workers whose death would explain the loss of the stream.
  std::vector<WorkerTarget> Suspects(Blame blame) const;

 private:
  Loss LossAfter(const absl::Status& error, Blame blame, const WorkerSigns& signs,
                 absl::Duration now) const;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ATTEMPT_H_
