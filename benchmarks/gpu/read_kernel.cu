#include "benchmarks/gpu/read_kernel.h"

namespace baton::gpu_bench {
namespace {

namespace cuda = backend::cuda;

constexpr int kThreads = 256;
constexpr int kLoads = 8;  // of 16 bytes, under way at once

struct ReadLaunch {
  const std::byte* from;
  int64_t pieces;  // of kThreads * kLoads * 16 bytes
  uint32_t* out;
};

BATON_KERNEL(kThreads) ReadKernel(ReadLaunch launch) {
  uint32_t mixed = 0;
  for (int64_t piece = cuda::BlockIndex().x; piece < launch.pieces; piece += cuda::Grid().x) {
    const std::byte* const first =
        launch.from + piece * (kThreads * kLoads * 16) + cuda::ThreadIndex() * 16;
    cuda::Vec16 v[kLoads];
    BATON_UNROLL for (int i = 0; i < kLoads; ++i) v[i] = cuda::Load16(first + i * (kThreads * 16));
    BATON_UNROLL for (int i = 0; i < kLoads; ++i) {
      mixed ^= v[i].x[0] ^ v[i].x[1] ^ v[i].x[2] ^ v[i].x[3];
    }
  }
  // Keeps the compiler from removing the reads.
  if (mixed == 0x9e3779b9u) *launch.out = mixed;
}

}  // namespace

void LaunchRead(const std::byte* from, int64_t size_bytes, uint32_t* out, int blocks,
                cuda::Stream stream) {
  cuda::Launch(ReadKernel, {static_cast<unsigned>(blocks), 1, 1}, kThreads, 0, stream,
               ReadLaunch{from, size_bytes / (kThreads * kLoads * 16), out});
}

}  // namespace baton::gpu_bench
