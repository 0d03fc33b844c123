// The load generator of `baton bench`, benchmarks and fault tests: sends requests to routers in a
// closed loop, in an open loop or all at once, and records how each went.
#ifndef BATON_CLI_LOAD_GENERATOR_H_
#define BATON_CLI_LOAD_GENERATOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"

namespace baton::cli {

// Seconds since the start of the process' monotonic clock.
double NowSeconds();

struct LoadRequest {
  v1::GenerateRequest request;
  absl::Duration timeout = absl::InfiniteDuration();  // the call's deadline
  int kind = 0;                                       // for the caller's own use
  // Called with the number of tokens so far whenever some arrive, on a gRPC thread; the stream is
  // not read meanwhile. False cancels the request. May be null.
  std::function<bool(int tokens)> on_tokens;
  bool keep_text = false;  // in Outcome.text
  // Any thread may call its TryCancel(), also before the request is sent. Null: the generator makes
  // one.
  std::shared_ptr<grpc::ClientContext> context;
};

struct Outcome {
  int kind = 0;          // LoadRequest.kind
  int max_tokens = 0;    // allowed by the request
  double timeout_s = 0;  // infinity: none
  double due_s = 0;      // when it should have been sent; latencies count from here
  double sent_s = 0;
  double ended_s = 0;
  std::vector<double> token_s;  // when each token arrived; equal for tokens of one message
  std::vector<int32_t> tokens;  // if the request has return_token_ids
  std::string text;             // if the request has keep_text
  v1::Usage usage;
  v1::Timings timings;  // of a complete answer
  v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
  absl::Status status;  // INTERNAL if the stream ended well without a finish reason

  bool has_first() const { return !token_s.empty(); }
  double ttft_s() const { return token_s.front() - due_s; }
  double elapsed_s() const { return ended_s - due_s; }
};

// "UNAVAILABLE WORKER_LOST": the code and, if there is one, the reason.
std::string ReasonOf(const absl::Status& status);

// A request of an open loop: when, and how to send it. `send` calls its `done` once, on any thread.
struct TimedSend {
  double at_s = 0;  // seconds after the start; not below the previous one's
  std::function<void(double due_s, std::function<void(Outcome)> done)> send;
};

struct OpenLoopOptions {
  int max_concurrency = std::numeric_limits<int>::max();  // a request waits while so many run
  const absl::Notification* stop = nullptr;               // once notified, no more are sent
  std::function<void(const Outcome&)> on_end;             // one call at a time, on any thread
};

// Sends what `next` returns at its time, until `next` returns nullopt; returns when all have ended,
// with outcomes in the order of their ends.
std::vector<Outcome> RunOpenLoop(const std::function<std::optional<TimedSend>()>& next,
                                 const OpenLoopOptions& options);

// Thread-safe. Must outlive its requests.
class LoadGenerator {
 public:
  // Several routers get requests in turn.
  explicit LoadGenerator(const std::vector<std::string>& routers);
  explicit LoadGenerator(const std::shared_ptr<grpc::Channel>& router);

  // `done` runs once, on a gRPC thread.
  void Send(const LoadRequest& request, double due_s, std::function<void(Outcome)> done);
  // The methods below return when all requests that they have sent have ended.
  Outcome SendAndWait(const LoadRequest& request);
  // Sends all at once; outcomes are in the order of the requests.
  std::vector<Outcome> SendAll(const std::vector<LoadRequest>& requests);
  // Closed loop: `callers` threads, each of which sends what `next` returns when its last request
  // has ended, until `next` returns nullopt. `done` gets the outcome on the caller's thread.
  void RunClosedLoop(int callers, const std::function<std::optional<LoadRequest>(int caller)>& next,
                     const std::function<void(int caller, Outcome outcome)>& done);
  // Open loop: sends what `next` returns at its time, whether or not earlier requests have ended,
  // until `next` returns nullopt. Outcomes are in the order in which the requests end.
  struct Arrival {
    double at_s = 0;  // seconds after the start; not below the previous one's
    LoadRequest request;
  };
  std::vector<Outcome> RunOpenLoop(const std::function<std::optional<Arrival>()>& next);

  // The tokens of a text, as the router makes them.
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text, bool add_special_tokens);
  // Returns the first model that the router serves; UNAVAILABLE if none has a vocabulary.
  absl::StatusOr<v1::Model> GetModel();

 private:
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs_;
  std::atomic<uint64_t> sent_{0};
};

}  // namespace baton::cli

#endif  // BATON_CLI_LOAD_GENERATOR_H_
