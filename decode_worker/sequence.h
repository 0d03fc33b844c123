// One Decode call and the sequences that answer it.
#ifndef BATON_DECODE_WORKER_SEQUENCE_H_
#define BATON_DECODE_WORKER_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/base/trace_context.h"
#include "common/kv/block_pool.h"
#include "common/kv/prefix_key.h"
#include "common/model/sampler.h"
#include "common/transfer/kv_receiver.h"
#include "common/worker/kv_hint.h"
#include "common/worker/retention.h"

namespace baton::grammar {
struct CompiledGrammar;
}

namespace baton::transfer {
class PrefillCall;
}

namespace baton::decode_worker {

class BeamSearch;
class CallTrace;
class DecodeStream;
class Drafter;

// The prefill worker that the router chose.
struct PrefillPeer {
  std::string address;  // empty: no prefill worker, the prompt is computed here
  std::string worker_id;
  uint64_t epoch = 0;
};

enum class Priority { kLow, kNormal, kHigh };

// One Decode call: what its choices share.
struct Call {
  uint64_t id = 0;
  std::string request_id;
  TraceContext trace_context;        // for log lines, and for calls of an unsampled request
  std::shared_ptr<CallTrace> trace;  // null: not sampled. Ended by the stream
  std::shared_ptr<DecodeStream> stream;
  PrefillPeer prefill;
  worker::KvHint kv_hint;  // for the prefill worker
  absl::Time deadline = absl::InfiniteFuture();
  Priority priority = Priority::kNormal;
  bool continuation = false;  // the worker that served the request was lost
  std::string tenant;
  std::string cache_salt;
  kv::PrefixKey root = 0;
  worker::PromptRetention retention;

  int prompt_tokens = 0;   // of the client's prompt; the tokens after them are the answer's
  int request_tokens = 0;  // in the request: the prompt, and the tokens of a resumed answer
  int max_tokens = 0;      // to generate, by each choice
  int min_tokens = 0;      // before a stop token may be drawn
  int n = 1;               // choices
  std::vector<int32_t> stop_token_ids;
  absl::flat_hash_set<int32_t> stop_token_set;
  std::optional<int> prompt_logprobs;
  std::shared_ptr<BeamSearch> beams;  // null: sampling
  // What the choices must follow; null: anything. Each sequence is a session of it, by its id.
  std::shared_ptr<const grammar::CompiledGrammar> grammar;

  bool speculates = true;         // drafts may be made for it
  int draft_tokens = 0;           // made so far, for all choices
  int accepted_draft_tokens = 0;  // of these, drawn

  // Facts about the first admission; resuming after a preemption does not change them.
  bool answered = false;  // a token has been pushed
  transfer::TransferSummary transfer;
  std::vector<v1::TokenLogprobs> computed_prompt_logprobs;
  absl::Duration submitted_at;
  std::optional<absl::Duration> admitted_at;
  std::optional<absl::Duration> first_token_at;
  std::optional<absl::Duration> computed_at;  // the prompt's KV is here: transferred or computed
  absl::Duration last_message_at;
  int open_choices = 0;
};

// KV of a preempted sequence, kept outside the pool: its blocks from the sequence's start, and the
// window pages that its next token sees, as host_kv.cc orders them.
struct HostCopy {
  int computed_tokens = 0;  // covered by `bytes`
  std::vector<std::byte> bytes;
};

// One choice of a call. Until the first tokens are drawn, one sequence represents all n choices.
struct Sequence {
  enum class State {
    kWaiting,    // no blocks
    kReceiving,  // a transfer writes to its blocks
    kRunning,    // in every batch: computes its tokens that lack KV, then decodes
    kEvicted,    // like kReceiving, but the transfer was cancelled
  };

  uint64_t id = 0;
  std::shared_ptr<Call> call;
  std::vector<int32_t> tokens;  // prompt, then what was generated
  model::SamplingParams sampling;
  int draws = 1;  // choices that the next draw is for: n at first when sampling, then 1

  State state = State::kWaiting;
  bool ended = false;  // if kEvicted: delete the sequence when the transfer ends
  kv::BlockLease blocks;
  int window_end = 0;          // the first of `blocks` without window pages that has no KV yet
  std::vector<int> snapshots;  // as PrefillJob has them, of the prompt that is computed here
  int computed_tokens = 0;     // how many of `tokens`, from the first, have KV in `blocks`
  // Of a recurrent model: drawn drafts behind computed_tokens, which the next step computes again.
  int repeated_tokens = 0;
  std::shared_ptr<transfer::PrefillCall> transfer_call;  // while receiving
  std::optional<absl::Duration> first_token_arrived_at;  // of the transfer
  int preemptions = 0;
  bool compute_here = false;  // after the transfer that followed a preemption failed
  HostCopy host_copy;
  std::shared_ptr<Drafter> drafter;  // null: nothing has been drafted since it was admitted
  uint64_t submission = 0;           // set by the scheduler: age

  int generated_tokens() const { return static_cast<int>(tokens.size()) - call->request_tokens; }
  // True if the cached tokens of the sequence are those of the request. Preempted beams are
  // admitted again with generated tokens, though no answer has been sent.
  bool at_first_admission() const { return preemptions == 0 && generated_tokens() == 0; }
  // The next token is drawn here, whoever computes the prompt.
  bool draws_here() const {
    return draws > 1 || call->beams != nullptr || call->grammar != nullptr;
  }
  // The first tokens whose KV a transfer is to bring, or is to have brought. A token that is drawn
  // here is drawn from the last one's logits, so that one is computed here: again, or, where a
  // state goes on from all tokens before it, for the first time.
  int transferred_tokens(const kv::BlockShape& shape) const {
    return static_cast<int>(tokens.size()) - (shape.recurrent && draws_here() ? 1 : 0);
  }
  int remaining_tokens() const { return static_cast<int>(tokens.size()) - computed_tokens; }
  // Its last token alone has not been computed, but for drafts that were drawn.
  bool decodes() const { return remaining_tokens() == 1 + repeated_tokens; }
  // The order of admission and the reverse order of preemption: lower goes first.
  std::tuple<int, uint64_t, uint32_t> Rank() const {
    return {-static_cast<int>(call->priority), submission, sampling.choice};
  }
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SEQUENCE_H_
