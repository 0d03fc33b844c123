// Specifications of known GPUs, so that `baton plan` runs on a machine without one: memory, and the
// two rates that bound latency from below.
#ifndef BATON_COMMON_ENGINE_GPU_FACTS_H_
#define BATON_COMMON_ENGINE_GPU_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::engine {

struct GpuFacts {
  std::string name;
  int compute_capability = 80;  // 75 is 7.5
  int64_t memory_bytes = 0;     // available to programs
  int64_t reserved_bytes =
      0;  // of memory_bytes: left to the driver and libraries, which load kernels later
  double bytes_per_second = 0;            // memory bandwidth
  double flops_per_second = 0;            // dense 16-bit matrix multiply, float32 accumulation
  double nvlink_bytes_per_second = 0;     // one way; 0: none
  double host_link_bytes_per_second = 0;  // from the host's memory
  // Where the rates come from. "sustained": measured by others, as the table says; "nominal": the
  // vendor's peak, not reached in practice; "given": set by flags.
  std::string rate_source = "given";
};

// Returns the GPU of that name, e.g. "t4", in any case; nullopt if it is not in the table.
std::optional<GpuFacts> FindGpu(absl::string_view name);
std::vector<std::string> GpuNames();

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_GPU_FACTS_H_
