// A kernel that only reads memory: the ceiling for products with few rows and attention over a long
// cache.
#ifndef BATON_BENCHMARKS_GPU_READ_KERNEL_H_
#define BATON_BENCHMARKS_GPU_READ_KERNEL_H_

#include <cstdint>

#include "common/backend/cuda/simt/simt.h"

namespace baton::gpu_bench {

// Writes to `out` only if the sum of the bytes has one unlikely value, so that the reads are kept.
void LaunchRead(const std::byte* from, int64_t size_bytes, uint32_t* out, int blocks,
                backend::cuda::Stream stream);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_READ_KERNEL_H_
