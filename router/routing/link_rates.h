// How long a byte of KV takes from each prefill to each decode worker, as decode workers have
// measured it.
//
// A pair counts as reported, or else as the mean of its decode worker's links, slower or faster as
// its prefill worker's links are compared with all; or else as the mean of the latter. Without any
// of these, nothing is known of it. A slow prefill worker is so found out by one decode worker, not
// by each of them anew. Two rules keep these numbers from being believed too much, as
// cost_estimates.h does for steps:
// - Rates near the fleet's mean count as the mean: equal links differ by chance, and the seemingly
//   fastest would get all new requests. A link stands out from a factor of 1.6 on, and then until
//   it is within 1.3.
// - What was measured longer ago than kHolds_s drifts to the mean. A link that was slow is avoided,
//   so it is not measured: it must be tried again at some time, one request of a few minutes.
#ifndef BATON_ROUTER_ROUTING_LINK_RATES_H_
#define BATON_ROUTER_ROUTING_LINK_RATES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "baton/internal/v1/worker.pb.h"

namespace baton::router {

// Workers are numbers, as in Roster; times are seconds of its clock. Unsynchronized.
class LinkRates {
 public:
  // One report has at most so many; what goes beyond it is ignored.
  static constexpr int kMostReported = 32;
  // Kept of a decode worker: those that were measured last.
  static constexpr size_t kMostLinks = 256;
  static constexpr double kHolds_s = 60;
  // Behind kHolds_s, the distance to the mean halves in this time.
  static constexpr double kFadesIn_s = 60;

  void Grow(int worker_count);
  // The process at that number, of either role. Idempotent.
  void Joins(int worker, const std::string& worker_id, uint64_t epoch);
  void Forget(int worker);
  // Numbers that make no sense are ignored. Effective at the next Tick.
  void OnReport(int worker, const internal::v1::LoadReport& report, double now_s);
  // Several times a second.
  void Tick(double now_s);

  // As of the last Tick. False: the rest is not to be asked for.
  bool any() const { return any_; }
  // By the number of the prefill worker: seconds a byte to that decode worker; 0: not known.
  // Valid until the next call of another method.
  absl::Span<const float> SecondsPerByteTo(int decode) const {
    const size_t width = row_of_.size();
    return absl::MakeConstSpan(rows_).subspan(static_cast<size_t>(row_of_[decode]) * width, width);
  }

  // No link to that decode worker counts as faster, by more than rounding.
  bool IsFastest(int prefill, int decode) const {
    return SecondsPerByteTo(decode)[prefill] <= 1.001f * least_[row_of_[decode]];
  }

 private:
  using Peer = std::pair<uint64_t, std::string>;  // epoch, id
  struct Link {
    double log_s = 0;  // of the seconds a byte takes
    double measured_at_s = 0;
    bool stands_out = false;
  };
  struct Worker {
    Peer peer;
    absl::flat_hash_map<Peer, Link> links;
  };

  void Leave(int worker);
  void Rebuild(double now_s);
  // Sets *mean to that of all links; false without any.
  bool MeanOf(double now_s, double* mean) const;

  std::vector<Worker> workers_;
  absl::flat_hash_map<Peer, int> numbers_;
  bool dirty_ = false;
  double built_at_s_ = 0;
  bool any_ = false;
  // Row 0 is that of decode workers without links: by the means of the prefill workers' links.
  std::vector<float> rows_;
  std::vector<int> row_of_;   // by decode worker
  std::vector<float> least_;  // by row
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_LINK_RATES_H_
