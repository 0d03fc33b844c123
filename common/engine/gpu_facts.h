// What is known of GPUs before one is there: memory and the two rates that set the floors.
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
  int compute_capability = 80;         // 75 is 7.5
  int64_t memory_bytes = 0;            // that programs can have of it
  int64_t reserved_bytes = 0;          // of these, what CUDA takes after the arena
  double bytes_per_second = 0;         // of its memory
  double flops_per_second = 0;         // of dense 16-bit products accumulated in float32
  double nvlink_bytes_per_second = 0;  // one way; 0: none
  // "sustained": the rates were reached; "nominal": the vendor's, which nothing reaches; "given".
  std::string rates = "given";
};

// The table's row of that name, e.g. "t4"; nothing if there is none.
std::optional<GpuFacts> FindGpu(absl::string_view name);
std::vector<std::string> GpuNames();

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_GPU_FACTS_H_
