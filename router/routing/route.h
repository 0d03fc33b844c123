// Where a request goes, and what a caller says of the request and of how it went.
#ifndef BATON_ROUTER_ROUTING_ROUTE_H_
#define BATON_ROUTER_ROUTING_ROUTE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/kv/prefix_key.h"
#include "router/fleet/worker.h"
#include "router/routing/decision.h"

namespace baton::router {

struct Route {
  WorkerTarget computes;   // the worker that computes the prompt
  WorkerTarget answers;    // the worker that the router calls, and that draws the tokens
  int matched_blocks = 0;  // on the worker that computes
  WorkerTarget kv_holder;  // has more of the prompt cached than the one that computes; may be none
  int kv_holder_tokens = 0;  // so many of the prompt
  std::string decision;      // label of metrics
  // From now to the expected first token: the queue before the prompt, and its own computing. 0
  // while no worker has reported its costs.
  absl::Duration predicted_ttft;
  std::shared_ptr<Decision> why;  // null unless asked for
  int64_t dispatch = 0;  // number of the prompt's dispatch; 0 if the route was only asked for
  int64_t answer_dispatch = 0;  // number of the answer's, if another worker computes the prompt
  std::vector<v1::WorkerRole> spilled;  // roles whose worker is of another pool than asked for

  // One worker does both: no KV moves.
  bool together() const { return computes.worker == answers.worker; }
};

struct RouteRequest {
  uint64_t model_fingerprint = 0;
  absl::Span<const kv::PrefixKey> keys;
  // So many of the keys' blocks can be reused at the most: a worker always computes the last token
  // of a prompt, so it finds no block that holds it (LimitTo).
  size_t matchable_blocks = std::numeric_limits<size_t>::max();
  int prompt_tokens = 0;
  int64_t max_answer_tokens = 0;  // still to generate, at the most; 0: no bound
  // Workers of failed attempts. Such a decode worker is chosen only where there is no other.
  // A worker that has been restarted since is another one.
  std::vector<Incarnation> avoid;
  // Where all prefill workers are to be avoided: choose one nevertheless, as it was only busy. If
  // false, the decode worker computes the prompt.
  bool avoided_prefill_may_do = false;
  // Who is to answer: a pair; a prefill worker alone, if there is one; such a worker in any case
  // (UNAVAILABLE, NO_PREFILL_WORKER, without one); or a worker that scores: a prefill worker or,
  // where none can be chosen, a decode worker that can (the same error without one).
  enum class Workers { kPair, kPrefillIfAny, kPrefill, kScore };
  Workers workers = Workers::kPair;
  // Has just computed this prompt, whether or not it has reported its blocks yet.
  int warm_worker = kNoWorker;
  // With kPrefill: the worker, whatever its role, pool and price; UNAVAILABLE, NO_WORKER, if that
  // process takes no requests now. No worker: any.
  Incarnation only = {kNoWorker, 0};
  // Not to be chosen again: the workers of each of `failed` together, the worker that answers of
  // each of `lost`, by epoch. UNAVAILABLE, with nothing noted, if nothing else is left.
  absl::Span<const Route> failed;
  absl::Span<const Route> lost;
  // The workers to choose among: of this pool; empty: of no pool. A role without workers of the
  // pool serves it with those of none, and where there are none either, with all.
  std::string pool;
  // Another pool's workers may do where those of the pool are not ready, have failed or refused the
  // request, or have no room for its blocks. If false: UNAVAILABLE without a ready decode worker.
  bool spill = true;
  absl::Duration ttft_slo;  // replaces that of RouteOptions; 0: does not
  // Fill Route::why.
  bool explain = false;
  // False: only asks. No dispatch is counted, and the request need not be sent.
  bool dispatch = true;
  // The request has lost a worker: another one that has been silent for longer than others is
  // chosen only where there is no other.
  bool after_loss = false;
  // The SLO applies: nothing has been sent to the client yet.
  bool may_refuse = false;

  // For a prompt of so many tokens, or several of which that is the longest.
  void LimitTo(int longest_prompt, int block_tokens) {
    matchable_blocks = static_cast<size_t>(std::max(longest_prompt - 1, 0) / block_tokens);
  }
  absl::Span<const kv::PrefixKey> matchable_keys() const {
    return keys.subspan(0, matchable_blocks);
  }
  bool pinned() const { return only.worker != kNoWorker; }
  // One worker does all of it.
  bool alone() const { return workers == Workers::kPrefill || workers == Workers::kScore; }
};

// What caused a failure on a route.
enum class Blame {
  kNone,     // neither worker, for example when one drains
  kPair,     // the two could not do it together
  kAnswers,  // the worker that answers did not
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_ROUTE_H_
