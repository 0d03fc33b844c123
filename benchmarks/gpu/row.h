// One figure: a line of JSON on standard output, from which scripts/gpu-check makes tables.
#ifndef BATON_BENCHMARKS_GPU_ROW_H_
#define BATON_BENCHMARKS_GPU_ROW_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/backend/cuda/plan/kernel_floors.h"

namespace baton::gpu_bench {

// The work, to be divided by the device's ceilings.
struct Work {
  double bytes = 0;
  double flops = 0;  // multiplications and additions, each counted
};
inline Work WorkOf(const backend::cuda::MovedBytes& floor, double flops = 0) {
  return {static_cast<double>(floor.total()), flops};
}

// Texts are names of ours: they need no escape.
class Row {
 public:
  Row(absl::string_view part, absl::string_view what);
  Row& Text(absl::string_view key, absl::string_view value);
  Row& Number(absl::string_view key, double value);
  // Seconds for the work.
  Row& Took(double seconds, const Work& work);
  std::string ToJson() const { return json_ + "}"; }
  // Flushes, so that an interrupted program has printed its rows.
  void Print() const;

 private:
  std::string json_;
};

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_ROW_H_
