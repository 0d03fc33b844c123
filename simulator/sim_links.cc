#include "simulator/sim_links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "simulator/random.h"

namespace baton::simulator {
namespace {

constexpr double kGbit = 1e9 / 8;  // bytes

}  // namespace

absl::StatusOr<LinkMatrix> ParseLinkRates(absl::string_view text, int prefill, int decode,
                                          uint64_t seed) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::vector<double> rates;
  for (absl::string_view word : absl::StrSplit(parts.second, ',')) {
    double gbit = 0;
    if (!absl::SimpleAtod(word, &gbit) || !(gbit >= 1e-3 && gbit <= 1e4)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", text, "\": expected rates of 0.001 to 10,000 Gbit/s, got \"", word, "\""));
    }
    rates.push_back(gbit * kGbit);
  }
  const bool racks = parts.first == "racks";
  const bool known =
      racks || parts.first == "pairs" || parts.first == "prefill" || parts.first == "decode";
  if (!known || rates.empty() || (racks && rates.size() != 2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\": expected pairs:, prefill: or decode: and rates, or racks: and two"));
  }
  LinkMatrix matrix(prefill, std::vector<double>(decode));
  for (int p = 0; p < prefill; ++p) {
    for (int d = 0; d < decode; ++d) {
      const uint64_t drawn = SplitMix64(seed ^ SplitMix64(static_cast<uint64_t>(p) * 4096 + d));
      const uint64_t which = racks                      ? (p + d) % 2
                             : parts.first == "prefill" ? p
                             : parts.first == "decode"  ? d
                                                        : drawn;
      matrix[p][d] = rates[which % rates.size()];
    }
  }
  return matrix;
}

SimLinks::SimLinks(LinkMatrix bytes_per_second, int layers)
    : rates_(std::move(bytes_per_second)), layers_(layers) {
  for (const std::vector<double>& of_prefill : rates_) {
    free_us_.emplace_back(of_prefill.size(), 0);
    meters_.resize(of_prefill.size());
  }
  for (Meter& meter : meters_) meter.meter = std::make_shared<transfer::LinkMeter>(clock_);
}

int64_t SimLinks::Move(int prefill, int decode, double bytes, int64_t began_us, int64_t now_us) {
  const double crossing_us = 1e6 * bytes / rates_[prefill][decode];
  int64_t& free_us = free_us_[prefill][decode];
  const int64_t sent_us = std::max(began_us, free_us) + static_cast<int64_t>(crossing_us);
  free_us = std::max(sent_us, now_us + static_cast<int64_t>(crossing_us / layers_));
  return free_us - now_us;
}

void SimLinks::Moved(int prefill, int decode, double bytes, int64_t now_us) {
  clock_.Set(now_us);
  meters_[decode].meter->Add({absl::StrCat("p", prefill), /*epoch=*/1}, static_cast<int64_t>(bytes),
                             absl::Seconds(bytes / rates_[prefill][decode]));
}

void SimLinks::Report(int decode, int64_t now_us, internal::v1::LoadReport* load) {
  Meter& meter = meters_[decode];
  const auto measured = meter.meter->Measured();
  if (measured == meter.reported) return;
  meter.reported = measured;
  for (const transfer::MeasuredLink& link : *measured) {
    internal::v1::LinkRate& told = *load->add_links();
    told.set_worker_id(link.peer.worker_id);
    told.set_epoch(link.peer.epoch);
    told.set_bytes_per_second(link.bytes_per_second);
    told.set_age_us(now_us - absl::ToInt64Microseconds(link.measured_at));
  }
}

}  // namespace baton::simulator
