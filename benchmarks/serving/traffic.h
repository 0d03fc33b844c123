// Requests for a benchmark to send: what they ask, and when they arrive.
#ifndef BATON_BENCHMARKS_SERVING_TRAFFIC_H_
#define BATON_BENCHMARKS_SERVING_TRAFFIC_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/load_generator.h"
#include "cli/random.h"

namespace baton::benchmarks {

using cli::LoadGenerator;
using cli::LoadRequest;
using cli::NowSeconds;
using cli::Outcome;
using cli::Random;
using cli::ReasonOf;

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

// Greedy, and as long as allowed.
LoadRequest MakeRequest(const std::vector<int32_t>& prompt, int answer_tokens);
// With a random prompt; of the kind Shape::mix_class.
LoadRequest MakeRequest(const Shape& shape, int vocab_size, Random* random);

// Of the model that the router serves. The program ends if there is none.
int VocabSizeOf(LoadGenerator* generator);

struct LoadOptions {
  double rate = 1;         // arrivals a second, of a Poisson process
  double duration_s = 10;  // of the arrivals
  uint64_t seed = 0;
  int vocab_size = 0;
  // Of a request for an answer of so many tokens; null: none.
  std::function<absl::Duration(int answer_tokens)> timeout;
};

// Sends requests of the mix at the times drawn; returns when all have ended.
std::vector<Outcome> RunOpenLoop(LoadGenerator* generator, const TrafficMix& mix,
                                 const LoadOptions& options);

// So many callers send requests of the mix until `duration_s` is over; returns when all have ended.
// Ignores `rate`.
std::vector<Outcome> RunClosedLoop(LoadGenerator* generator, const TrafficMix& mix, int callers,
                                   const LoadOptions& options);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_TRAFFIC_H_
