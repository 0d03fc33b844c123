// Baton's C++ SDK: start here.
//
//   auto client = baton::client::Client::Create("127.0.0.1:50051");
//   baton::client::GenerateRequest request;
//   request.text = "Once upon a time";
//   auto stream = (*client)->Generate(request);
//   while (auto delta = stream->Next()) std::cout << delta->text << std::flush;
//   if (!stream->status().ok()) std::cerr << stream->status();
//
// Errors are absl::Status; common/base/error.h reads their reason, field and retry time. There are
// no exceptions, and this header includes neither gRPC nor Protobuf. Both headers are installed, as
// baton/client.h and baton/error.h: docs/packages.md.
//
// UNAVAILABLE with "router at ADDRESS" in its message means that the router cannot be reached. A
// call fails with it at once if the host is unknown or nothing listens at the port. A router that
// accepts the connection and is slow to answer has 20 s to do so.
#ifndef BATON_CLIENT_CPP_CLIENT_H_
#define BATON_CLIENT_CPP_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::client {

struct ClientOptions {
  absl::Duration timeout = absl::Seconds(600);  // for each call, from start to end
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

enum class Priority { kDefault, kLow, kNormal, kHigh };

struct GenerateRequest {
  std::string model;               // empty: the only model that is served
  std::string text;                // the prompt, if token_ids is empty
  std::vector<int32_t> token_ids;  // the prompt as token ids
  Sampling sampling;
  std::optional<int32_t> max_tokens;  // absent: until the model stops or its context is full
  std::vector<std::string> stop;      // texts that end the answer and are not part of it
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int32_t> min_tokens;  // smallest number of tokens to generate
  std::optional<int32_t> n;           // number of choices, 1 to 16; absent: 1
  // Beam search instead of sampling, with 2 to 16 beams; the n best beams are the choices.
  std::optional<int32_t> beam_width;
  std::optional<float> length_penalty;  // with beam_width; absent: 1
  // Number of top alternatives, 0 to 20, to return with the log probability of each generated
  // token, or of each prompt token. Absent: no log probabilities.
  std::optional<int32_t> logprobs;
  std::optional<int32_t> prompt_logprobs;
  Priority priority = Priority::kDefault;
  std::string tenant;      // for fair shares between tenants; the empty name is a tenant, too
  std::string request_id;  // empty: the router generates one
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
  // Copies of the fields of choices[0].
  std::string text;
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kUnfinished;
  std::string matched_stop;

  Usage usage;  // of all choices
  Timings timings;
  uint64_t seed = 0;  // the seed that sampling used
  std::string request_id;
  std::vector<Choice> choices;  // n of them
  std::vector<TokenLogprobs> prompt_logprobs;
};

// One running request. Cancel() may be called by any thread, everything else by one thread. The
// destructor cancels a request that still runs. The stream may outlive its Client.
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
  // Cancels the request, on the workers too. status() becomes CANCELLED unless the answer is
  // already complete.
  void Cancel();

 private:
  friend class Client;
  struct Call;
  explicit GenerateStream(std::unique_ptr<Call> call);
  std::unique_ptr<Call> call_;
};

struct Model {
  std::string id;
  int max_model_len = 0;  // 0 until a worker has reported it
  int vocab_size = 0;
  uint64_t fingerprint = 0;
};

struct Worker {
  std::string address;
  std::string role;   // "prefill", "decode"
  // "connecting", "ready", "suspect", "expired", "refused", "draining", "drained"
  std::string state;
  std::string detail;
  int running = 0;
  int queued = 0;
  int total_blocks = 0;
  int free_blocks = 0;
  int64_t indexed_blocks = 0;
};

// A connection to a router. Thread-safe. All calls except Generate() block until they are answered.
class Client {
 public:
  // Does not connect: the first call does. INVALID_ARGUMENT if `address` is not host:port.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& address,
                                                        const ClientOptions& options = {});
  ~Client();

  // Starts a request and does not block. Errors appear in the status of the stream.
  std::unique_ptr<GenerateStream> Generate(const GenerateRequest& request);
  absl::StatusOr<Completion> GenerateOnce(const GenerateRequest& request);
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text,
                                                bool add_special_tokens = true);
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& token_ids,
                                         bool skip_special_tokens = true);
  absl::StatusOr<std::vector<Model>> ListModels();
  absl::StatusOr<std::vector<Worker>> ListWorkers();

 private:
  struct Connection;
  explicit Client(std::unique_ptr<Connection> connection);
  std::unique_ptr<Connection> connection_;
};

}  // namespace baton::client

#endif  // BATON_CLIENT_CPP_CLIENT_H_
