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
  // Of a router that has API keys; empty: none is sent. Without TLS, everyone on the way can read
  // it.
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
  Sampling sampling;
  std::optional<int32_t> max_tokens;  // absent: until the model stops or its context is full
  std::vector<std::string> stop;      // texts that end the answer and are not part of it
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int32_t> min_tokens;  // smallest number of tokens to generate
  // What the answer must be; at most one of the four. docs/structured_output.md has what is
  // supported.
  bool json_object = false;
  std::string json_schema;                // text of a JSON schema
  std::string regex;                      // matches the whole answer
  std::vector<std::string> answer_texts;  // the answer is one of them
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
  bool return_token_ids = false;
};

struct Usage {
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;  // of prompt_tokens
  int generated_tokens = 0;
  int64_t kv_bytes = 0;  // KV bytes sent from prefill to decode workers
};

// Times in milliseconds, as defined in baton/v1/inference.proto.
struct Timings {
  double queue_ms = 0;
  double prefill_ms = 0;
  double kv_transfer_ms = 0;
  double decode_ms = 0;
  double ttft_ms = 0;
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

  // Of the first choice.
  const std::string& text() const { return choices.front().text; }
  const std::vector<int32_t>& token_ids() const { return choices.front().token_ids; }
  FinishReason finish_reason() const { return choices.front().finish_reason; }
};

class StreamCall;
struct Connection;

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

  // As GenerateStream::Cancel(). Any thread, inside a callback too. Does not wait.
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
};

// A connection to a router. Thread-safe. Calls block until they are answered, except Generate().
class Client {
 public:
  // Does not connect: the first call does. INVALID_ARGUMENT if `address` is not host:port.
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
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text,
                                                bool add_special_tokens = true,
                                                const CallOptions& call = {});
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
