// The links between simulated prefill and decode workers: how long KV takes, and what decode
// workers report of it, by their own LinkMeter.
#ifndef BATON_SIMULATOR_SIM_LINKS_H_
#define BATON_SIMULATOR_SIM_LINKS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/internal/v1/worker.pb.h"
#include "common/transfer/link_meter.h"
#include "simulator/sim_clock.h"

namespace baton::simulator {

// By prefill and decode worker, in bytes a second.
using LinkMatrix = std::vector<std::vector<double>>;

// "decode:1,10,10": rates in Gbit/s, by turns, of decode workers; "prefill:...", of prefill
// workers; "pairs:...", of pairs, drawn by `seed`; "racks:25,1": of a pair in one of two racks, and
// of a pair across. INVALID_ARGUMENT if it is none of these.
absl::StatusOr<LinkMatrix> ParseLinkRates(absl::string_view text, int prefill, int decode,
                                          uint64_t seed);

class SimLinks {
 public:
  // The KV of a prompt is of `layers` layers, the last of which crosses when all are computed.
  SimLinks(LinkMatrix bytes_per_second, int layers);

  // The KV of a prompt that was computed from began_us to now_us: how long after that it has come.
  int64_t Move(int prefill, int decode, double bytes, int64_t began_us, int64_t now_us);
  // It has come.
  void Moved(int prefill, int decode, double bytes, int64_t now_us);
  // Adds what has changed since the decode worker's last report.
  void Report(int decode, int64_t now_us, internal::v1::LoadReport* load);

 private:
  struct Meter {
    std::shared_ptr<transfer::LinkMeter> meter;
    std::shared_ptr<const std::vector<transfer::MeasuredLink>> reported;
  };

  const LinkMatrix rates_;
  const int layers_;
  std::vector<std::vector<int64_t>> free_us_;  // when the link's last transfer ends
  SimClock clock_;
  std::vector<Meter> meters_;  // by decode worker
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_SIM_LINKS_H_
