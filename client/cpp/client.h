// Baton's C++ SDK: start here.
//
//   auto client = baton::client::Client::Create("127.0.0.1:50051");
//   baton::client::GenerateRequest request;
//   request.text = "Once upon a time";
//   auto stream = (*client)->Generate(request);
//   while (auto delta = stream->Next()) std::cout << delta->text << std::flush;
//   if (!stream->status().ok()) std::cerr << stream->status();
//
// Errors are absl::Status; common/base/error.h reads their reason, field and time to retry. No
// exceptions, and neither gRPC nor Protobuf in this header.
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
  absl::Duration timeout = absl::Seconds(600);  // of each call, as a whole
};

// What is absent takes the model's own default.
struct Sampling {
  std::optional<float> temperature;  // 0 to 2; 0 is greedy
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  std::optional<float> repetition_penalty;  // above 0, at most 2; 1 is none
  std::optional<float> frequency_penalty;   // -2 to 2; 0 is none
  std::optional<float> presence_penalty;    // -2 to 2; 0 is none
  std::map<int32_t, float> logit_bias;      // by token id, -100 to 100
};

enum class Priority { kDefault, kLow, kNormal, kHigh };

struct GenerateRequest {
  std::string model;  // empty: the only model served
  std::string text;   // the prompt, unless token_ids has it
  std::vector<int32_t> token_ids;
  Sampling sampling;
  std::optional<int32_t> max_tokens;  // absent: until the model stops or its context is full
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int32_t> min_tokens;  // none ends the answer before so many
  std::optional<int32_t> n;           // choices, 1 to 16; absent: 1
  // Beam search instead of sampling, 2 to 16 beams, of which the n best are the choices.
  std::optional<int32_t> beam_width;
  std::optional<float> length_penalty;  // with beam_width; absent: 1
  std::optional<int32_t> logprobs;      // with so many of the most probable tokens, 0 to 20
  std::optional<int32_t> prompt_logprobs;
  Priority priority = Priority::kDefault;
  std::string tenant;
  std::string request_id;  // empty: the router makes one
  std::string cache_salt;
  bool return_token_ids = false;
};

struct Usage {
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;
  int generated_tokens = 0;
  int64_t kv_bytes = 0;
};

// In milliseconds; see baton/v1/inference.proto.
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

// A token's log probability in the model's own distribution, and those of the most probable.
struct TokenLogprobs {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;  // best first
};

// What came in one message.
struct Delta {
  std::string text;
  std::vector<int32_t> token_ids;  // if asked for
  Usage usage;                     // so far, of all choices
  int choice = 0;
  std::vector<TokenLogprobs> logprobs;         // of this delta's tokens, if asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // from the prompt's second token on, if asked for
};

// One of n.
struct Choice {
  std::string text;
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kUnfinished;
  std::string matched_stop;
  std::vector<TokenLogprobs> logprobs;
  double beam_score = 0;
};

// A whole answer; of a stream, what is known so far.
struct Completion {
  // As choices[0] has them.
  std::string text;
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kUnfinished;
  std::string matched_stop;

  Usage usage;  // of all choices
  Timings timings;
  uint64_t seed = 0;
  std::string request_id;
  std::vector<Choice> choices;  // n of them
  std::vector<TokenLogprobs> prompt_logprobs;
};

// One running request. Next() and what it changes are for one thread; Cancel() is for any. Its
// destructor cancels what still runs. May outlive its client.
class GenerateStream {
 public:
  ~GenerateStream();
  GenerateStream(const GenerateStream&) = delete;
  GenerateStream& operator=(const GenerateStream&) = delete;

  // Blocks for the next piece; what only says that the stream lives is passed over. Nothing once
  // the request has ended, well or not: see status().
  std::optional<Delta> Next();
  // Of the ended stream. OK only if the answer is complete: every choice of it.
  const absl::Status& status() const;
  // All that came, put together.
  const Completion& completion() const;
  // Ends the request, on the workers too. status() will be CANCELLED unless it was complete.
  void Cancel();

 private:
  friend class Client;
  struct Call;
  explicit GenerateStream(std::unique_ptr<Call> call);
  std::unique_ptr<Call> call_;
};

struct Model {
  std::string id;
  int max_model_len = 0;  // 0 while no worker has told it
  int vocab_size = 0;
  uint64_t fingerprint = 0;
};

struct Worker {
  std::string address;
  std::string role;   // "prefill", "decode"
  std::string state;  // "connecting", "ready", "suspect", "expired", "refused", "draining"
  std::string detail;
  int running = 0;
  int queued = 0;
  int total_blocks = 0;
  int free_blocks = 0;
  int64_t indexed_blocks = 0;
};

// A connection to a router. Thread-safe.
class Client {
 public:
  // Connects at the first call. INVALID_ARGUMENT if `address` is not host:port.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& address,
                                                        const ClientOptions& options = {});
  ~Client();

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
