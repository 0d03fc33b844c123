// Reads memory and does nothing else: the ceiling of what only reads, as products with few rows and
// attention over a long cache do.
#ifndef BATON_BENCHMARKS_GPU_READ_KERNEL_H_
#define BATON_BENCHMARKS_GPU_READ_KERNEL_H_

#include <cstdint>

#include "common/backend/cuda/simt/simt.h"

namespace baton::gpu_bench {

// A word that the bytes' sum decides is written to `out` if it is what nobody expects it to be.
void LaunchRead(const std::byte* from, int64_t size_bytes, uint32_t* out, int blocks,
                backend::cuda::Stream stream);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_READ_KERNEL_H_
