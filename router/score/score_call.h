// One call inside the router that scores or embeds items: they are tokenized, sent in batches to
// prefill workers, and answered as they are scored. Items of a batch that is lost go to another
// worker.
//
// Bounds. At most kItemsAhead items are tokenized and not sent. Of all scoring calls together,
// kItemsInFlight items and kTokensInFlight tokens per prefill worker are at workers, of which each
// call has its share (item_shares.h), and at least one item. They go in batches of at most
// kItemsPerBatch items and kTokensPerBatch tokens, each of which is one stream. Tokens of items at
// workers count for --max-inflight-prompt-tokens; beyond that limit a call has one batch at
// workers. The sink of a stream of items bounds those that wait before this: it stops reading.
#ifndef BATON_ROUTER_SCORE_SCORE_CALL_H_
#define BATON_ROUTER_SCORE_SCORE_CALL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/kv/prefix_key.h"
#include "router/fleet/model_info.h"
#include "router/request/access.h"
#include "router/request/admission.h"
#include "router/request/call_registry.h"
#include "router/request/call_watch.h"
#include "router/request/entrance.h"
#include "router/request/item_shares.h"
#include "router/request/loss_record.h"
#include "router/request/request_class.h"
#include "router/request/retry_ledger.h"
#include "router/request/router_parts.h"
#include "router/request/score_network.h"
#include "router/routing/route.h"
#include "router/score/item_prompts.h"
#include "router/score/score_sink.h"
#include "router/score/score_trace.h"

namespace baton::router {

inline constexpr int kItemsPerBatch = 32;
inline constexpr int kItemsInFlight = 128;
inline constexpr int kItemsAhead = 256;
// Tokens of items, without their prefix. An item of more tokens is a batch alone.
inline constexpr int64_t kTokensPerBatch = 8192;
inline constexpr int64_t kTokensInFlight = 4 * kTokensPerBatch;

// Thread-safe. Shared by the sources of its events: the client's stream, the tokenizing threads,
// the clock and the workers' streams.
class ScoreCall final : public ScoreListener,
                        public WatchedCall,
                        public CancellableCall,
                        public std::enable_shared_from_this<ScoreCall> {
 public:
  // `embeds`: whether it will, for the metrics of a call that is refused.
  explicit ScoreCall(RouterParts& parts, Caller caller = {}, bool embeds = false);

  struct Settings {
    v1::ScoreRequest request;  // its items are the first; more may come if `stream`
    bool stream = false;
    bool in_order = true;
    // Embeds its inputs, instead of scoring: `request` has what the two kinds of calls have in
    // common then (SettingsOf). An input that cannot be embedded fails the call.
    std::optional<v1::EmbedRequest> embed;
    // The parts of the prefix and of each item that are split: Tokenizer::Encode. `item_splits` is
    // empty, or has one entry for each item.
    ByteRanges prefix_split;
    std::vector<ByteRanges> item_splits;
  };
  // Call once. `sink` gets exactly one Finish or Fail, possibly before this returns.
  void Start(Settings settings, absl::Time deadline, ScoreSink* sink);
  // As Start, for a call that could not even be parsed.
  void Refuse(const absl::Status& error, ScoreSink* sink);
  // A stream adds items after Start.
  void Add(google::protobuf::RepeatedPtrField<v1::ScoreItem> items);
  void EndOfItems();
  // The client sent what it must not.
  void Abort(const absl::Status& error);

  // The client is gone. Ends the workers' streams at once.
  void Cancel();
  bool EndWith(const absl::Status& error) override;
  // The sink must not be called any more.
  void OnSinkGone();

  void OnScored(int stream, const internal::v1::ScoredItem& result) override;
  void OnStreamEnd(int stream, const grpc::Status& status) override;
  // Gives up batches whose worker is gone, and a client that does not read; sends items that wait.
  void OnTick() override;

 private:
  struct Item {
    int64_t number = 0;  // in the order of arrival
    uint64_t id = 0;
    ItemPrompts::Text text;       // until it is tokenized
    std::vector<int32_t> tokens;  // instead of a text
    ItemPrompt prompt;
    LossRecord losses;
  };
  // Items at one worker.
  struct Batch {
    Route route;
    ScoreHandle* handle = nullptr;           // while the stream lives
    std::vector<std::optional<Item>> items;  // by their index in the batch; empty: answered
    size_t open = 0;                         // items neither answered nor returned
    std::vector<Item> returned;              // items that the worker refused, in order
    absl::Status refusal;                    // the last one
    int64_t tokens = 0;                      // of the items, without their prefix
    std::optional<Admission::FurtherPrompt> admitted;
    absl::Duration sent_at;
    // A worker sends results, or heartbeats.
    bool heard = false;
    absl::Duration last_message;  // time of the last message, or of sending
    absl::Duration heard_at;      // the last message; zero before the first
    absl::Duration patience;      // longer silence is a loss
  };
  // The first items that are ready.
  struct Cut {
    size_t items = 0;
    int shared = 0;          // tokens that begin all their prompts
    int64_t tokens = 0;      // of the items behind these
    int label_tokens = 0;    // that are computed: of each label all but the last
    int longest_prompt = 0;  // in tokens
  };

  // --- Items in: score_call.cc.
  absl::Status Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Item& AddItem(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a thread of the pool tokenize items, unless one does or enough items are ahead.
  void PrepareMore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prepare();
  // Tokenizes the prefix. It is called once.
  absl::Status MakePrompts() ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Items out: score_call.cc.
  void AnswerScored(Item item, const internal::v1::ScoredItem& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerError(const Item& item, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(int64_t number, ItemResult result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishIfDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cancels what still runs. Returns the sink, for the one answer; afterwards there is none.
  ScoreSink* End(absl::StatusCode code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const char* Kind() const { return embeds_ ? "embed" : "score"; }
  void CheckReader(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Batches, and their losses: score_call_failover.cc.
  // Sends what is ready, as far as bounds, pauses and workers allow. Fails the call if items have
  // waited for too long.
  void Dispatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends a batch. True if another one may follow at once.
  bool DispatchBatch(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OpenBatch(const Cut& cut, Admission::FurtherPrompt admitted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What may be sent now; none if the call has its share at workers.
  Cut NextCut() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All items of the batch were answered or returned.
  void EndBatch(int stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnBatchLost(int stream, const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers waiting items with an error that have been lost too often, as it has turned out.
  void DropUnclear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Declared first, so destroyed last: the router may be gone as soon as its ticket is.
  Entrance entrance_ ABSL_GUARDED_BY(mutex_);
  RouterParts& parts_;
  const RetryContext retry_;
  const Caller caller_;
  const bool embeds_;
  const absl::Duration received_;

  absl::Mutex mutex_;
  ScoreSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;      // null once answered
  ScoreSink* answered_ ABSL_GUARDED_BY(mutex_) = nullptr;  // it may still be writing
  Settings settings_ ABSL_GUARDED_BY(mutex_);              // without the items
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  ScoreTrace trace_ ABSL_GUARDED_BY(mutex_);
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);
  RequestClass class_ ABSL_GUARDED_BY(mutex_);
  ItemShares::Share share_ ABSL_GUARDED_BY(mutex_);         // while admitted and not answered
  CallRegistry::Entry registered_ ABSL_GUARDED_BY(mutex_);  // while admitted and not answered
  ModelInfo model_ ABSL_GUARDED_BY(mutex_);
  // Elements of each embedding in the answer; 0: the call scores.
  int dimensions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const ItemPrompts> prompts_ ABSL_GUARDED_BY(mutex_);
  std::vector<kv::PrefixKey> prefix_keys_ ABSL_GUARDED_BY(mutex_);

  bool input_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool preparing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Item> unprepared_ ABSL_GUARDED_BY(mutex_);
  std::deque<Item> ready_ ABSL_GUARDED_BY(mutex_);
  // The key is the stream's id. Ids are never reused, so late messages are dropped.
  std::map<int, Batch> batches_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;          // items of `batches_`
  int64_t tokens_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // as Batch::tokens
  int next_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  int prefill_workers_ ABSL_GUARDED_BY(mutex_) = 1;  // at the last choice
  // The holds of all workers that were asked: the channel to a worker outlives the last stream.
  std::vector<WorkerHold> holds_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, ItemResult> out_of_order_ ABSL_GUARDED_BY(mutex_);
  int64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t answered_items_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dispatched_ ABSL_GUARDED_BY(mutex_) = false;                        // a batch was sent
  std::optional<absl::Duration> first_result_at_ ABSL_GUARDED_BY(mutex_);  // of a worker
  v1::ScoreUsage usage_ ABSL_GUARDED_BY(mutex_);

  RetryLedger retries_ ABSL_GUARDED_BY(mutex_);
  bool unclear_ ABSL_GUARDED_BY(mutex_) = false;  // DropUnclear may find some
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_SCORE_CALL_H_
