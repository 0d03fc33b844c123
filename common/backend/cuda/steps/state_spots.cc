#include "common/backend/cuda/steps/state_spots.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::backend::cuda {

const SpotEntry* StateSpots::Of(const LayerState& state, int layer, int plane) {
  const std::vector<StateSpot>& spots = state[static_cast<size_t>(plane)].spots;
  Copied& copied = copied_[{layer, plane}];
  const auto same = [](const StateSpot& a, const StateSpot& b) {
    return a.table == b.table && a.offset == b.offset;
  };
  if (std::equal(spots.begin(), spots.end(), copied.spots.begin(), copied.spots.end(), same)) {
    return copied.device;
  }
  if (spots.size() > copied.spots.size()) {
    const auto count = static_cast<int64_t>(spots.size());
    BATON_CHECK_LE(used_ + count, capacity_) << "spots: StepLimits has too few";
    copied.device = device_ + used_;
    used_ += count;
  }
  std::vector<SpotEntry> entries;
  for (const StateSpot& spot : spots) {
    BATON_CHECK(spot.table >= 0 && spot.offset >= 0 && spot.offset < int64_t{1} << 32)
        << "table " << spot.table << ", offset " << spot.offset;
    entries.push_back({static_cast<uint32_t>(spot.table), static_cast<uint32_t>(spot.offset)});
  }
  staging_.CopyToDevice(copied.device, entries.data(), entries.size() * sizeof(SpotEntry));
  copied.spots = spots;
  return copied.device;
}

}  // namespace baton::backend::cuda
