#include "common/backend/cuda/runtime/driver_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::backend::cuda {
namespace {

std::string VersionOf(int cuda) { return absl::StrCat(cuda / 1000, ".", cuda % 1000 / 10); }

// The first driver of a major version of CUDA. Source: the table of minimum driver versions in
// NVIDIA's "CUDA Compatibility".
std::string FirstDriver(int cuda) {
  switch (cuda / 1000) {
    case 12:
      return "525";
    case 13:
      return "580";
    default:
      return absl::StrCat("of CUDA ", cuda / 1000);
  }
}

}  // namespace

absl::StatusOr<int> CountAfterError(const DriverState& state) {
  if (state.driver == 0 || state.no_device) return 0;
  // Within a major version, an older driver runs a newer program.
  if (state.driver / 1000 < state.runtime / 1000) {
    const int needed = state.runtime / 1000 * 1000;
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "DEVICE_UNUSABLE",
        absl::StrCat(
            "the NVIDIA driver is too old: it supports CUDA up to ", VersionOf(state.driver),
            ", expected ", VersionOf(needed), " or newer, which is driver ", FirstDriver(needed),
            " or newer. Update the driver; or, on a GPU for data centres, install "
            "NVIDIA's package cuda-compat-",
            needed / 1000, "-", state.runtime % 1000 / 10, "; or start with --device cpu"));
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNUSABLE",
                   absl::StrCat("no GPU can be used: cudaGetDeviceCount: ", state.error,
                                " (driver for CUDA ", VersionOf(state.driver),
                                ", this program has CUDA ", VersionOf(state.runtime), ")"));
}

}  // namespace baton::backend::cuda
