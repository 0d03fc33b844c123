// Requests for a benchmark to send: what they ask, when they arrive, and how they went.
#ifndef BATON_BENCHMARKS_SERVING_TRAFFIC_H_
#define BATON_BENCHMARKS_SERVING_TRAFFIC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/splitmix64.h"

namespace baton::benchmarks {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return NextSplitMix64(&state_); }
  double Uniform();                 // [0, 1)
  int Between(int low, int high);   // both included
  double Exponential(double rate);  // mean 1 / rate
  std::vector<int32_t> Tokens(int count, int vocab_size);

 private:
  uint64_t state_;
};

struct Shape {
  int prompt_tokens = 0;
  int answer_tokens = 0;
  int mix_class = 0;  // which part of the mix it comes from
};

// Kinds of request by weight; lengths are uniform within a kind.
class TrafficMix {
 public:
  // "WEIGHT:PROMPT_LOW-PROMPT_HIGH:ANSWER_LOW-ANSWER_HIGH", several with commas between.
  static absl::StatusOr<TrafficMix> Parse(const std::string& text);
  Shape Draw(Random* random) const;
  int classes() const { return static_cast<int>(kinds_.size()); }
  int longest() const;  // prompt and answer

 private:
  struct Kind {
    double weight;
    int prompt_low, prompt_high, answer_low, answer_high;
  };
  std::vector<Kind> kinds_;
  double total_weight_ = 0;
};

struct Ask {
  std::vector<int32_t> prompt;
  int max_tokens = 1;
  uint64_t seed = 0;
  absl::Duration timeout = absl::InfiniteDuration();  // sent along as the call's deadline
  Shape shape;
  // Told how many tokens have come, whenever some come, on a thread of gRPC's; may be null.
  std::function<void(int tokens)> on_tokens;
};

Ask MakeAsk(const Shape& shape, int vocab_size, Random* random);

// Seconds since the start of the process' monotonic clock.
double NowSeconds();

struct Outcome {
  Shape shape;
  double timeout_s = 0;  // infinity: none
  double due_s = 0;      // when it should have been sent; latencies count from here
  double sent_s = 0;
  double ended_s = 0;
  std::vector<double> token_s;  // when each token arrived
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;
  std::vector<int32_t> tokens;
  absl::Status status;

  bool has_first() const { return !token_s.empty(); }
  double ttft_s() const { return token_s.front() - due_s; }
  double elapsed_s() const { return ended_s - due_s; }
};

// A connection to a router. Thread-safe; outlives its calls.
class LoadClient {
 public:
  explicit LoadClient(const std::string& address);
  ~LoadClient();

  // `done` runs once, on a thread of gRPC's.
  void Send(const Ask& ask, double due_s, std::function<void(Outcome)> done);
  Outcome SendAndWait(const Ask& ask);
  // The model's; an error if the router cannot be reached.
  absl::StatusOr<int> VocabSize();

 private:
  struct Connection;
  const std::unique_ptr<Connection> connection_;
};

struct LoadOptions {
  double rate = 1;         // arrivals a second, of a Poisson process
  double duration_s = 10;  // of the arrivals
  uint64_t seed = 0;
  int vocab_size = 0;
  // The timeout of a request of this shape; null: none.
  std::function<absl::Duration(const Shape&)> timeout;
};

// Sends at the times drawn, whatever has become of the others, and returns when all have ended.
std::vector<Outcome> RunOpenLoop(LoadClient* client, const TrafficMix& mix,
                                 const LoadOptions& options);

// `concurrency` callers who send the next when the last has ended, until `duration_s` is over;
// returns when all have ended. Ignores `rate`.
std::vector<Outcome> RunClosedLoop(LoadClient* client, const TrafficMix& mix, int concurrency,
                                   const LoadOptions& options);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_TRAFFIC_H_
