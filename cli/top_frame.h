// What `baton top` shows of a cluster at one moment: the workers' loads, and the rates and
// percentiles between two answers of AdminService.GetLoads.
#ifndef BATON_CLI_TOP_FRAME_H_
#define BATON_CLI_TOP_FRAME_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/admin.pb.h"
#include "common/base/clock.h"

namespace baton::cli {

struct TopFrame {
  struct Worker {
    v1::WorkerLoad load;
    std::optional<double> prefill_tokens_per_s;
    std::optional<double> decode_tokens_per_s;
    std::optional<double> accepted_draft_share;  // absent: no drafts
  };
  // In seconds, of the values observed between the two answers.
  struct Percentiles {
    std::optional<double> p50, p95, p99;
  };

  absl::Time time;         // of this frame
  absl::Status status;     // of the call; after an error, the figures are those of the last answer
  absl::Duration age;      // of the figures; 0 without an error
  absl::Duration between;  // the two answers; 0: there is only one, and no rate or percentile
  std::vector<Worker> workers;  // as the router lists them
  v1::RouterLoad router;
  // Absent: unknown, as after a restart of the process that counts. Those of the router are also
  // absent if it has no /metrics. Tokens per second are sums over the workers.
  std::optional<double> prefill_tokens_per_s;
  std::optional<double> decode_tokens_per_s;
  std::optional<double> requests_per_s;       // that ended
  std::optional<double> refused_per_s;        // before a worker was asked
  std::optional<double> cached_prompt_share;  // of the prompt tokens of requests that ended
  Percentiles time_to_first_token;
  Percentiles inter_token_latency;
};

// One thread.
class TopFrames {
 public:
  // `clock` must outlive it.
  explicit TopFrames(const Clock& clock) : clock_(clock) {}

  // The frame after an answer, or an error, that has just come. Rates are relative to the last
  // answer before it. A counter that went back, or is of another process, gives none.
  const TopFrame& Add(absl::StatusOr<v1::GetLoadsResponse> answer);

 private:
  const Clock& clock_;
  std::optional<v1::GetLoadsResponse> last_;  // answer
  absl::Duration last_at_;
  TopFrame frame_;
};

// The quantile `q`, 0 to 1, of the values that were observed between two histograms of one process.
// Interpolates linearly within a bucket, as Prometheus' histogram_quantile does; at most the last
// bound. Absent without such values, and if the two do not belong together.
std::optional<double> QuantileBetween(const v1::SecondsHistogram& before,
                                      const v1::SecondsHistogram& now, double q);

// The frame as one JSON object on one line, docs/cli.md has the keys. `address`: of the router.
std::string FrameJson(const TopFrame& frame, const std::string& address);

}  // namespace baton::cli

#endif  // BATON_CLI_TOP_FRAME_H_
