// Where the units of states are (StatePlane::spots), on the device: host work and copies.
#ifndef BATON_COMMON_BACKEND_CUDA_STEPS_STATE_SPOTS_H_
#define BATON_COMMON_BACKEND_CUDA_STEPS_STATE_SPOTS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/backend/cuda/kernels/recurrence.h"
#include "common/backend/cuda/runtime/host_staging.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// Thread: the backend's.
class StateSpots {
 public:
  // device: of `capacity` spots, which outlives it, as does `staging`.
  StateSpots(SpotEntry* device, int64_t capacity, HostStaging& staging)
      : device_(device), capacity_(capacity), staging_(staging) {}

  // The plane's spots on the device, which the first use copies there, and one whose plane has
  // changed: another pool's. A plane keeps its address, which recorded steps have.
  // REQUIRES: all planes together have no more than `capacity` spots.
  const SpotEntry* Of(const LayerState& state, int layer, int plane);

 private:
  struct Copied {
    std::vector<StateSpot> spots;
    SpotEntry* device = nullptr;
  };
  SpotEntry* const device_;
  const int64_t capacity_;
  HostStaging& staging_;
  int64_t used_ = 0;
  std::map<std::pair<int, int>, Copied> copied_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_STEPS_STATE_SPOTS_H_
