// What a level of load came to: goodput, refusals, latencies, memory; as a table and as a plot.
#ifndef BATON_BENCHMARKS_SERVING_LOAD_REPORT_H_
#define BATON_BENCHMARKS_SERVING_LOAD_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {

// Of unsorted values, linear between the two nearest; NaN of none.
double Percentile(std::vector<double> values, double fraction);

// A bound on the whole answer, which is what a request's deadline says, and one on the first token,
// of which no server is told.
struct Slo {
  double ttft_s = 0;
  double per_token_s = 0;  // the answer: ttft_s + per_token_s for each token after the first

  double finish_s(int answer_tokens) const { return ttft_s + per_token_s * (answer_tokens - 1); }
  // Answered, and whole by its deadline.
  bool Met(const Outcome& outcome) const;
  // And the first token in time.
  bool FirstTokenMet(const Outcome& outcome) const;
};

enum class Fate {
  kAnswered,  // whole, in time or not
  kRefused,   // before the first token and well before the deadline: RESOURCE_EXHAUSTED,
              // UNAVAILABLE or DEADLINE_EXCEEDED
  kExpired,   // its deadline ended it
  kFailed,    // anything else
};
Fate FateOf(const Outcome& outcome);

// Of what ended within the window: in a steady state that says what a second of this load yields.
// Or of several rounds: see MedianOf.
struct LevelFigures {
  int rounds = 1;
  double multiple = 0;      // of the saturation rate
  double offered_rate = 0;  // arrivals a second
  double window_s = 0;
  int ended = 0, answered = 0, good = 0, good_ttft = 0, refused = 0, expired = 0, failed = 0;
  double goodput = 0;                        // answers by their deadlines a second
  double goodput_low = 0, goodput_high = 0;  // of the rounds
  double goodput_ttft = 0;                   // those whose first token was in time, too
  double goodput_tokens = 0;                 // the tokens of `goodput`
  double refusal_p50_ms = 0, refusal_p99_ms = 0;
  int refused_with_retry = 0;
  double retry_p50_ms = 0;  // the time to retry that they were told
  double ttft_p50_ms = 0, ttft_p99_ms = 0, gap_p50_ms = 0, gap_p99_ms = 0;  // of answers
  double send_lag_p99_ms = 0;                   // how late the generator itself was
  std::map<std::string, int> reasons;           // of what was not answered
  std::map<std::string, std::string> messages;  // one for each reason
};

// Ends before begin_s or after end_s are left out.
LevelFigures Summarize(const std::vector<Outcome>& outcomes, const Slo& slo, double begin_s,
                       double end_s);

// Of rounds of one level, at least one: rates and times are the medians of the rounds' figures,
// counts and the window are sums.
LevelFigures MedianOf(const std::vector<LevelFigures>& rounds);

// Times between the tokens of an answer, in milliseconds.
std::vector<double> GapsMs(const Outcome& outcome);

struct MemorySample {
  double at_s = 0;
  std::map<std::string, int64_t> resident_bytes;  // by process
};

// The level's place in time, for its memory.
struct LevelSpan {
  double multiple = 0, begin_s = 0, end_s = 0;
};

std::string GoodputTable(const std::vector<LevelFigures>& levels);
std::string LatencyTable(const std::vector<LevelFigures>& levels);
// What was not answered, by reason; empty if all was.
std::string ReasonTable(const std::vector<LevelFigures>& levels);
// The median in each tenth of each level's time: first, middle, last; and the peak.
std::string MemoryTable(const std::vector<MemorySample>& samples,
                        const std::vector<LevelSpan>& spans);
// Goodput over load, refusal times, and memory over time.
std::string LoadPlot(const std::vector<LevelFigures>& levels,
                     const std::vector<MemorySample>& samples);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_LOAD_REPORT_H_
