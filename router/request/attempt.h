// One attempt to have choices of a request generated: a Decode stream to one pair of workers, and
// what the attempts before it came to.
#ifndef BATON_ROUTER_REQUEST_ATTEMPT_H_
#define BATON_ROUTER_REQUEST_ATTEMPT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "baton/v1/inference.pb.h"
#include "router/request/answer.h"
#include "router/request/continuation_line.h"
#include "router/request/decode_network.h"
#include "router/request/loss_record.h"
#include "router/request/retry_ledger.h"
#include "router/routing/route.h"

namespace baton::router {

// What the earlier attempts at the same choices came to.
struct RetryState {
  RetryLedger retries;
  LossRecord losses;                    // since the last token
  bool continued = false;               // some of the tokens are of an earlier attempt
  int warm_worker = kNoWorker;          // has computed the prompt, and did not answer
  std::vector<Route> lost;              // their workers that answered are not asked again
  std::vector<Route> failed;            // pairs that are not asked again
  internal::v1::DecodeTimings timings;  // sum over the attempts

  // The current attempt has brought tokens: earlier failures count no more.
  void OnTokens();
  // Workers may be asked again for which a pause is enough.
  void ForgetWorkers(absl::Duration now);
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
  int ends = 0;         // how many finishes the worker has reported
  // The most that the worker has reported.
  int64_t kv_bytes = 0;
  int64_t draft_tokens = 0;
  int64_t accepted_draft_tokens = 0;
  absl::Duration sent_at;           // when it was sent, by RouterParts::clock
  absl::Duration sent_at_awake;     // when it was sent, by RouterParts::awake
  std::optional<int64_t> decision;  // number in the decision log
  int cached_tokens = 0;
  internal::v1::DecodeTimings timings;
  // The attempt has it from a refusal for want of room to the first message of a worker.
  std::optional<ContinuationLine::Hold> hold;

  // A message of the worker has come. Adds to `sum` what it reports more of: bytes of moved KV,
  // drafted and accepted tokens.
  void OnMessage(const internal::v1::DecodeResponse& response, absl::Duration now, v1::Usage* sum);
  // The worker has been silent for longer than `bound`.
  bool Stalled(absl::Duration now, absl::Duration bound) const {
    return heard && now - last_message > bound;
  }
  // The stream ended with `error`.
  StreamEnd EndWith(const absl::Status& error, absl::Duration now) const {
    return {error, route, heard, sent_at_awake, now};
  }
  // What an attempt at `sequences` has to know that follows this one, whose stream ended so.
  RetryState PastAfter(const StreamEnd& end, int sequences, const WorkerSigns& signs) const;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ATTEMPT_H_
