#include "common/engine/gpu_facts.h"

#include "absl/strings/match.h"
#include "common/backend/cuda/runtime/device_share.h"

namespace baton::engine {
namespace {

struct Row {
  const char* name;
  int compute_capability;
  int64_t memory_mib;
  double gb_per_second;
  double tflops;
  double nvlink_gb_per_second;
  double host_gb_per_second;
  const char* rate_source;
};

// Memory: what CUDA gives as the total, which is less than what is on the label (ECC, the driver);
// rounded down. Rates are the vendor's (dense products, no sparsity), but the T4's.
//
// t4: 14,930 MiB usable. 249 GB/s and 24 TFLOPS is what a card of 70 W sustains (copies; repeated
//   4096³ products in cuBLAS); its label says 320 GB/s and 65 TFLOPS. 12 GB/s is what copies from
//   pinned memory reach of the 15.75 of PCIe 3 x16, an estimate.
// l4, a10g, a100 (80 GB SXM), a100-40gb, h100 (80 GB SXM), h200: NVIDIA's data sheets; for the
//   A10G, which has none, AWS's. The host's link is PCIe 4 or 5 x16.
constexpr Row kRows[] = {
    {"t4", 75, 14'930, 249, 24, 0, 12, "sustained"},
    {"l4", 89, 22'400, 300, 121, 0, 31.5, "nominal"},
    {"a10g", 86, 22'400, 600, 70, 0, 31.5, "nominal"},
    {"a100", 80, 81'000, 2039, 312, 300, 31.5, "nominal"},
    {"a100-40gb", 80, 40'300, 1555, 312, 300, 31.5, "nominal"},
    {"h100", 90, 80'900, 3350, 989, 450, 63, "nominal"},
    {"h200", 90, 143'000, 4800, 989, 450, 63, "nominal"},
};

}  // namespace

std::optional<GpuFacts> FindGpu(absl::string_view name) {
  for (const Row& row : kRows) {
    if (!absl::EqualsIgnoreCase(name, row.name)) continue;
    return GpuFacts{.name = row.name,
                    .compute_capability = row.compute_capability,
                    .memory_bytes = row.memory_mib << 20,
                    .reserved_bytes = backend::cuda::kReservedBytes,
                    .bytes_per_second = row.gb_per_second * 1e9,
                    .flops_per_second = row.tflops * 1e12,
                    .nvlink_bytes_per_second = row.nvlink_gb_per_second * 1e9,
                    .host_link_bytes_per_second = row.host_gb_per_second * 1e9,
                    .rate_source = row.rate_source};
  }
  return std::nullopt;
}

std::vector<std::string> GpuNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

}  // namespace baton::engine
