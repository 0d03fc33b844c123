// A layer's experts on the device.
#ifndef BATON_COMMON_BACKEND_CUDA_MATRICES_EXPERT_GROUP_H_
#define BATON_COMMON_BACKEND_CUDA_MATRICES_EXPERT_GROUP_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/cuda/runtime/host_staging.h"

namespace baton::backend::cuda {

// A router in float32, whatever the activations are.
class CudaRouter final : public PackedMatrix {
 public:
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if its columns are not a multiple of 8.
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Make(const HostMatrix& matrix,
                                                            Backend& backend, HostStaging& staging);
  CudaRouter(std::unique_ptr<Buffer> memory, int64_t experts, int64_t cols)
      : PackedMatrix(experts, cols), memory_(std::move(memory)) {}
  int64_t size_bytes() const override { return static_cast<int64_t>(memory_->size_bytes()); }
  const float* data() const { return static_cast<const float*>(memory_->data()); }

 private:
  const std::unique_ptr<Buffer> memory_;
};

// Device memory where the experts of one layer in the host's memory are copied before they are
// multiplied with: StepLimits' fetched_expert_bytes.
struct FetchedExperts {
  std::byte* memory = nullptr;
  int64_t size_bytes = 0;
};

class CudaExpertGroup final : public ExpertGroup {
 public:
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if the experts' matrices differ in their form, have their
  // columns in an order of their own or, in the host's memory, have no room in `fetched`. REQUIRES:
  // all of them are in one memory.
  static absl::StatusOr<std::unique_ptr<ExpertGroup>> Make(std::vector<ExpertMatrices> experts,
                                                           const ExpertBiases& biases,
                                                           const FetchedExperts& fetched,
                                                           Backend& backend, HostStaging& staging);
  // All experts' matrices of one kind: what a launch takes, but for x, rows and tiles.
  struct Table {
    ExpertOperands operands = {};
    std::unique_ptr<Buffer> memory;  // of operands.matrices
  };
  // The launch that copies matrices from the host's memory to the places that the tables name. It
  // has no sources if all matrices are on the device.
  struct Fetch {
    FetchExpertsLaunch launch = {};
    std::unique_ptr<Buffer> memory;  // of launch.sources
  };
  CudaExpertGroup(std::vector<ExpertMatrices> experts, const ExpertBiases& biases, Table gate_up,
                  Table down, Fetch fetch)
      : ExpertGroup(std::move(experts), biases),
        gate_up_(std::move(gate_up)),
        down_(std::move(down)),
        fetch_(std::move(fetch)) {}

  const ExpertOperands& gate_up() const { return gate_up_.operands; }
  const ExpertOperands& down() const { return down_.operands; }
  bool on_host() const { return fetch_.memory != nullptr; }
  // Everything but counts. REQUIRES: on_host().
  const FetchExpertsLaunch& fetch() const { return fetch_.launch; }

 private:
  const Table gate_up_, down_;
  const Fetch fetch_;
};

// Which experts compute which rows, for kExpertRowsAtOnce rows or all of a step.
struct ExpertWorkspace {
  static size_t DeviceBytes(const StepLimits& limits);  // 0 without experts
  // Of each array below, in order, as the arena aligns them.
  static std::vector<size_t> PartBytes(const StepLimits& limits);
  static ExpertWorkspace In(void* memory, const StepLimits& limits);

  unsigned* counts = nullptr;
  int32_t* chosen = nullptr;
  float* weights = nullptr;
  int32_t* pairs = nullptr;
  int32_t* rows = nullptr;
  ExpertTile* tiles = nullptr;
  FetchedExperts fetched;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_MATRICES_EXPERT_GROUP_H_
