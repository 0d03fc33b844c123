// Baton's C++ SDK: start here.
//
//   auto client = baton::client::Client::Create("127.0.0.1:50051");
//   baton::client::GenerateRequest request;
//   request.text = "Once upon a time";
//   auto stream = (*client)->Generate(request);
//   for (const auto& delta : *stream) std::cout << delta.text << std::flush;
//   if (!stream->status().ok()) std::cerr << stream->status();
//
// Errors are absl::Status; baton/error.h (common/base/error.h) reads their reason, field, retry
// time and request id. There are no exceptions, and this header includes neither gRPC nor Protobuf.
// Both headers are installed, as baton/client.h and baton/error.h: docs/packages.md.
//
// A call that fails before its first delta is retried if docs/errors.md, "When to retry", allows
// it: after the time that the router asks for plus an exponential back-off with jitter, at most
// max_retries times, and never beyond the call's timeout. UNAVAILABLE with "router at ADDRESS" in
// its message means that the router cannot be reached. A router that accepts the connection and is
// slow to answer has 20 s to do so.
#ifndef BATON_CLIENT_CPP_CLIENT_H_
#define BATON_CLIENT_CPP_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::client {

// Paths of PEM files.
struct Tls {
  bool enabled = false;     // TLS even without any file
  std::string ca;           // CAs of the router's certificate; empty: those of the system
  std::string cert;         // the client's certificate, for routers that require one
  std::string key;          // of that certificate
  std::string server_name;  // which the router's certificate has; empty: the host of the address
};

struct ClientOptions {
  absl::Duration timeout = absl::Seconds(600);  // for each call, from start to end, with retries
  int max_retries = 2;                          // of each call
  // A call waits for a router that cannot be reached, until its timeout. False: the attempt fails
  // at once if the host is unknown or nothing listens at the port.
  bool wait_for_ready = true;
  // The key for a router that has API keys; empty: none is sent. Without TLS, everyone on the way
  // can read it.
  std::string api_key;
  Tls tls;                                     // by default plaintext
  std::map<std::string, std::string> headers;  // sent with each call; names in lower case
};

// What one call has other than its client.
struct CallOptions {
  std::optional<absl::Duration> timeout;
};

// Absent fields take the defaults of the model's generation_config.json.
struct Sampling {
  std::optional<float> temperature;  // 0 to 2; 0 means greedy
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  std::optional<float> repetition_penalty;  // above 0, at most 2; 1 means none
  std::optional<float> frequency_penalty;   // -2 to 2; 0 means none
  std::optional<float> presence_penalty;    // -2 to 2; 0 means none
  std::map<int32_t, float> logit_bias;      // token id to bias, -100 to 100
};

// One turn of a conversation.
struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or another that the chat template knows
  std::string content;
};

enum class Priority { kDefault, kLow, kNormal, kHigh };

// Asks prefix caches to keep the prompt's beginning; docs/prefix-care.md has the meanings.
struct Retention {
  std::optional<int32_t> until_token = {};  // absent: the whole prompt
  int32_t priority = 0;                     // 0 to 100
  int64_t ttl_ms = 0;                       // 1 or more
};

// How to shorten a prompt that is too long, so that later turns stay cached: docs/policy.md.
struct Truncation {
  std::optional<int32_t> keep_first;  // tokens that are never dropped
  std::optional<int32_t> keep_last;
  std::optional<float> retention_ratio;  // filled after a step, 0.1 to 1
};

// A part of the prompt; `length` counts bytes of text, or token ids.
enum class PromptSource { kOther, kSystem, kHistory, kRetrieval, kTools, kUser };
struct PromptSegment {
  PromptSource source = PromptSource::kOther;
  int32_t length = 0;
};

struct GenerateRequest {
  std::string model;  // empty: the only model that is served
  // The prompt: the first of these that is not empty. The router makes a prompt of messages with
  // the model's chat template, which asks for the assistant's next one.
  std::vector<ChatMessage> messages;
  std::vector<int32_t> token_ids;
  std::string text;
  // Add the tokenizer's special tokens, such as begin-of-text. Absent: true for text, false for
  // messages.
  std::optional<bool> add_special_tokens;
  // If true, text that spells special tokens stays text: a prompt that is given as text, or all
  // that the chat template takes from messages. If absent, it is false for text, and the router's
  // --split-special-tokens decides for messages.
  std::optional<bool> split_special_tokens;
  Sampling sampling;
  // If absent, a default of the router or the model limits the answer, if there is one; else the
  // answer ends when the model stops, or when its context or the KV pool is full. If 0, with
  // prompt_logprobs, the prompt is scored and no token is generated.
  std::optional<int32_t> max_tokens;
  std::vector<std::string> stop;  // texts that end the answer and are not part of it
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int32_t> min_tokens;  // smallest number of tokens to generate
  // What the answer must be; at most one of the four. docs/structured_output.md has what is
  // supported.
  bool json_object = false;
  std::string json_schema;                // text of a JSON schema
  std::string regex;                      // matches the whole answer
  std::vector<std::string> answer_texts;  // the answer is one of them
  bool any_whitespace = false;            // beside the first two: between tokens of JSON
  std::optional<int32_t> n;               // number of choices, 1 to 16; absent: 1
  // Beam search instead of sampling, with 2 to 16 beams; the n best beams are the choices.
  std::optional<int32_t> beam_width;
  std::optional<float> length_penalty;  // with beam_width; absent: 1
  // Number of top alternatives, 0 to 20, to return with the log probability of each generated
  // token, or of each prompt token. Absent: no log probabilities.
  std::optional<int32_t> logprobs;
  std::optional<int32_t> prompt_logprobs;
  Priority priority = Priority::kDefault;
  std::string tenant;      // for fair shares between tenants; the empty name is a tenant, too
  std::string request_id;  // empty: the client generates one
  std::string cache_salt;  // requests share cached prefixes only if their salts are equal
  std::optional<Truncation> truncation;  // absent: a prompt that is too long is an error
  // The parts of the prompt in order, for Usage::by_source; all of it, or none.
  std::vector<PromptSegment> segments;
  bool return_token_ids = false;
  std::optional<Retention> retention;
  bool explain_cache = false;  // report a cache miss in Usage::cache_miss
  // False: no drafts for this request, where the workers draft. Absent: true.
  std::optional<bool> speculation;
};

// Why less of the prompt was cached than an earlier prompt of the tenant would have allowed; the
// fields are those of baton.v1.CacheMiss.
struct CacheMiss {
  std::string cause;  // "changed", "evicted" or "other_salt"
  int first_different_token = 0;
  std::string text, earlier_text;
  int lost_tokens = 0;
  double lost_ms = 0;  // 0: unknown
  std::string earlier_request_id;
};

struct Usage {
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;  // of prompt_tokens
  int generated_tokens = 0;
  int64_t kv_bytes = 0;                      // KV bytes sent from prefill to decode workers
  std::optional<CacheMiss> cache_miss = {};  // with explain_cache, in the last message
  int dropped_prompt_tokens = 0;             // by truncation; not part of prompt_tokens
  struct Source {
    int tokens = 0, cached = 0;
  };
  std::map<PromptSource, Source> by_source = {};  // with segments
  // Speculative decoding: tokens drafted for all choices, and how many of them were accepted.
  int draft_tokens = 0, accepted_draft_tokens = 0;
};

// Times in milliseconds, as defined in baton/v1/inference.proto.
struct Timings {
  double queue_ms = 0, prefill_ms = 0, kv_transfer_ms = 0, decode_ms = 0, ttft_ms = 0;
};

enum class FinishReason { kUnfinished, kStop, kLength };
const char* FinishReasonName(FinishReason reason);  // "stop", "length", ""

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

// Log probabilities of a token and of the most probable tokens at its position, before sampling
// parameters apply.
struct TokenLogprobs {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;  // best first
};

// One message of a stream.
struct Delta {
  std::string text;
  std::vector<int32_t> token_ids;              // if requested
  Usage usage;                                 // of all choices so far
  int choice = 0;                              // index of the choice that the delta extends
  std::vector<TokenLogprobs> logprobs;         // of this delta's tokens, if requested
  std::vector<TokenLogprobs> prompt_logprobs;  // from the second prompt token on, if requested
  FinishReason finish_reason = FinishReason::kUnfinished;  // set in the last delta of a choice
};

// One of the n answers.
struct Choice {
  std::string text;
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kUnfinished;
  std::string matched_stop;  // the stop text that ended it, if one did
  std::vector<TokenLogprobs> logprobs;
  double beam_score = 0;  // with beam search
};

// A complete answer or, for a stream that runs, what has arrived so far.
struct Completion {
  std::vector<Choice> choices = std::vector<Choice>(1);  // n of them
  Usage usage;                                           // of all choices
  Timings timings;                                       // known at the end
  uint64_t seed = 0;                                     // that sampling used; known at the end
  std::string request_id;
  std::vector<TokenLogprobs> prompt_logprobs;

  // These are fields of the first choice.
  const std::string& text() const { return choices.front().text; }
  const std::vector<int32_t>& token_ids() const { return choices.front().token_ids; }
  FinishReason finish_reason() const { return choices.front().finish_reason; }
};

// Prefix and item are one text. docs/scoring.md.
struct ScoreRequest {
  std::string model;  // empty: the only model that is served
  std::string prefix;
  std::vector<std::string> labels;  // 1 to 64
  std::optional<bool> add_special_tokens;
  Priority priority = Priority::kDefault;
  std::string tenant;
  std::string request_id;  // empty: the client generates one
  std::string cache_salt;
};

struct ScoreItem {
  uint64_t id = 0;
  std::string text;
};

struct LabelScore {
  double logprob = 0;  // of the label after prefix + item: the sum over its tokens
  std::vector<int32_t> token_ids;
  std::vector<float> token_logprobs;
};

struct ItemScore {
  uint64_t id = 0;
  absl::Status status;                // of this item alone; not OK: there are no labels
  std::vector<LabelScore> labels;     // in the order of the request
  std::optional<double> probability;  // with two labels P0 / (P0 + P1)
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;
};

struct ScoreUsage {
  int64_t items = 0, failed_items = 0;
  int64_t prompt_tokens = 0, cached_prompt_tokens = 0;
};

struct Scores {
  std::vector<ItemScore> items;  // in the order of the request; ids are indexes
  ScoreUsage usage;
  std::string request_id;
};

// docs/embeddings.md.
struct EmbedRequest {
  std::string model;                  // empty: the only model that is served
  std::optional<int32_t> dimensions;  // the first elements of the model's vectors; absent: all
  // For inputs that are texts. Absent: true, as most such models take the vector from a token that
  // the tokenizer adds at the end.
  std::optional<bool> add_special_tokens;
  Priority priority = Priority::kDefault;
  std::string tenant;
  std::string request_id;  // empty: the client generates one
  std::string cache_salt;
};

// A text, or token ids, which are taken as they are.
using EmbedInput = std::variant<std::string, std::vector<int32_t>>;

struct Embedding {
  std::vector<float> values;
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;
};

struct Embeddings {
  std::vector<Embedding> embeddings;  // in the order of the inputs
  std::string request_id;
};

class StreamCall;
struct Connection;

// A call that scores items as they come. Send() and EndItems() may be called by one thread, Next()
// by another, Cancel() by any; the results have to be read while items are sent. Not retried: the
// router itself sends items of a lost worker elsewhere. The destructor cancels a call that runs.
class ScoreStream {
 public:
  ~ScoreStream();
  ScoreStream(const ScoreStream&) = delete;
  ScoreStream& operator=(const ScoreStream&) = delete;

  // Waits while the router takes no more. False once the call has ended: see status().
  bool Send(const std::vector<ScoreItem>& items);
  void EndItems();
  // Waits for the next result. nullopt once the call has ended.
  std::optional<ItemScore> Next();
  // These are for the thread of Next(), after the end. The status is OK if every item has a result.
  const absl::Status& status() const;
  const ScoreUsage& usage() const;  // known at the end
  void Cancel();

 private:
  friend class Client;
  struct State;
  explicit ScoreStream(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// One running request, read by the caller. Cancel() may be called by any thread, everything else by
// one thread. The destructor cancels a request that still runs. The stream may outlive its Client.
class GenerateStream {
 public:
  ~GenerateStream();
  GenerateStream(const GenerateStream&) = delete;
  GenerateStream& operator=(const GenerateStream&) = delete;

  // Waits for the next delta and skips heartbeats. nullopt once the request has ended: see
  // status().
  std::optional<Delta> Next();
  // The status of a stream that has ended. OK only if every choice is complete.
  const absl::Status& status() const;
  // Everything that has arrived, merged.
  const Completion& completion() const;
  const Usage& usage() const { return completion().usage; }
  // Cancels the request, on the workers too, and ends a wait for a retry. status() becomes
  // CANCELLED, with the reason CANCELLED, unless the answer is already complete.
  void Cancel();

  // for (const Delta& delta : *stream): calls Next() until the request has ended.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Delta;
    using difference_type = std::ptrdiff_t;
    using pointer = const Delta*;
    using reference = const Delta&;
    Iterator() = default;
    explicit Iterator(GenerateStream* stream) : stream_(stream) { ++*this; }
    reference operator*() const { return *delta_; }
    pointer operator->() const { return &*delta_; }
    Iterator& operator++() {
      delta_ = stream_->Next();
      return *this;
    }
    bool operator!=(const Iterator& other) const {
      return delta_.has_value() != other.delta_.has_value();
    }

   private:
    GenerateStream* stream_ = nullptr;
    std::optional<Delta> delta_;  // empty: the end
  };
  Iterator begin() { return Iterator(this); }
  Iterator end() { return {}; }

 private:
  friend class Client;
  GenerateStream(std::shared_ptr<const Connection> connection, std::shared_ptr<StreamCall> call);
  const std::shared_ptr<const Connection> connection_;
  const std::shared_ptr<StreamCall> call_;
  bool ended_ = false;
};

// The library calls these on its internal threads, one after the other, and never inside a call of
// Client or CallbackStream. They must not throw, and must not block on this library (Next(), unary
// calls, ~GenerateStream): other requests need the thread. The next message is read when on_delta
// has returned.
struct StreamCallbacks {
  std::function<void(const Delta&)> on_delta;  // may be null
  // Called exactly once, last. The status is OK only if every choice is complete.
  std::function<void(const absl::Status&, const Completion&)> on_done;
};

// One running request that calls its owner back. May outlive its Client.
class CallbackStream {
 public:
  // Cancels a request that still runs, and waits until on_done has returned. Inside a callback it
  // does not wait: the callbacks may then come after the destructor, and the Client must outlive
  // them.
  ~CallbackStream();
  CallbackStream(const CallbackStream&) = delete;
  CallbackStream& operator=(const CallbackStream&) = delete;

  // Works as GenerateStream::Cancel(). Any thread may call, inside a callback too. Does not wait.
  void Cancel();

 private:
  friend class Client;
  struct State;
  CallbackStream(std::shared_ptr<const Connection> connection, std::shared_ptr<State> state);
  const std::shared_ptr<const Connection> connection_;
  const std::shared_ptr<State> state_;
};

struct Model {
  std::string id;
  int max_model_len = 0;  // 0 until a worker has reported it
  int vocab_size = 0;
  uint64_t fingerprint = 0;
};

struct Worker {
  std::string address;
  std::string role;  // "prefill", "decode"
  // "connecting", "ready", "suspect", "expired", "refused", "draining", "drained"
  std::string state;
  std::string detail;
  int running = 0;
  int queued = 0;
  int total_blocks = 0;
  int free_blocks = 0;
  int64_t indexed_blocks = 0;
  std::vector<std::string> capabilities;  // of "compute", "score" and "answer"
};

// A connection to a router. Thread-safe. Calls block until they are answered, except Generate().
class Client {
 public:
  // Does not connect: the first call does. INVALID_ARGUMENT if `address` is not host:port, a file
  // of TLS cannot be read, is not PEM, or is a certificate or key without the other, or the API key
  // or a header has characters that no call can carry.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& address,
                                                        const ClientOptions& options = {});
  explicit Client(std::shared_ptr<const Connection> connection);  // for tests
  ~Client();

  // Both start a request and do not block. Errors appear in the status of the stream.
  std::unique_ptr<GenerateStream> Generate(const GenerateRequest& request,
                                           const CallOptions& call = {});
  std::unique_ptr<CallbackStream> Generate(const GenerateRequest& request,
                                           StreamCallbacks callbacks, const CallOptions& call = {});
  // The whole answer.
  absl::StatusOr<Completion> GenerateOnce(const GenerateRequest& request,
                                          const CallOptions& call = {});
  // At most 4,096 items; an item that cannot be scored has an error.
  absl::StatusOr<Scores> Score(const ScoreRequest& request, const std::vector<std::string>& items,
                               const CallOptions& call = {});
  // Any number of items. `in_order`: results come in the order of the items.
  std::unique_ptr<ScoreStream> Score(const ScoreRequest& request, bool in_order,
                                     const CallOptions& call = {});
  // A vector for each input, of which there are at most 2,048; all vectors have 4 MiB together. An
  // input that cannot be embedded fails the call.
  absl::StatusOr<Embeddings> Embed(const EmbedRequest& request,
                                   const std::vector<EmbedInput>& inputs,
                                   const CallOptions& call = {});
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text,
                                                bool add_special_tokens = true,
                                                const CallOptions& call = {},
                                                bool split_special_tokens = false);
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& token_ids,
                                         bool skip_special_tokens = true,
                                         const CallOptions& call = {});
  absl::StatusOr<std::vector<Model>> ListModels(const CallOptions& call = {});
  absl::StatusOr<std::vector<Worker>> ListWorkers(const CallOptions& call = {});

 private:
  const std::shared_ptr<const Connection> connection_;
};

// Whether the same request may succeed later: UNAVAILABLE, RESOURCE_EXHAUSTED with a retry time, or
// CANCELLED without a reason, by a router that stops. The client has then retried already, unless a
// delta had arrived. What the caller cancels has the reason CANCELLED.
bool IsRetryable(const absl::Status& error);

}  // namespace baton::client

#endif  // BATON_CLIENT_CPP_CLIENT_H_
