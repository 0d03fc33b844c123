// Kernels that break the rules of kernel_check.py, one rule each, and two that keep them. Only ever
// compiled, by its self-test.
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {
struct PlantedLaunch {
  const float* in;
  float* out;
  int n;
};

BATON_KERNEL(256) GoodKernel(PlantedLaunch launch) {
  AwaitPrevious();
  const Vec16 v = Load16(launch.in + ThreadIndex() * 4);
  auto* shared = reinterpret_cast<float*>(SharedMemory());
  shared[ThreadIndex()] = Fma(BitsFloat(v.x[0]), BitsFloat(v.x[1]), BitsFloat(v.x[2]));
  SyncThreads();
  launch.out[ThreadIndex()] = shared[ThreadIndex() ^ 1];
}

template <class Element>
BATON_KERNEL(32)
AttentionGoodKernel(PlantedLaunch launch) {
  AwaitPrevious();
  float d[4] = {};
  const uint32_t bits = FloatBits(launch.in[Lane()]);
  const uint32_t a[4] = {bits, bits, bits, bits};
  Element::Mma16(d, a, bits, bits);
  launch.out[Lane()] = d[0] + d[3];
}
template __global__ void AttentionGoodKernel<Half>(PlantedLaunch);
template __global__ void AttentionGoodKernel<BFloat16>(PlantedLaunch);

BATON_KERNEL(128) AttentionWithoutMmaKernel(PlantedLaunch launch) {
  AwaitPrevious();
  launch.out[ThreadIndex()] = launch.in[ThreadIndex()];
}

// 64 registers a thread, and 128 values that are all needed at the end.
BATON_KERNEL(1024) SpillsKernel(PlantedLaunch launch) {
  AwaitPrevious();
  float value[128];
  BATON_UNROLL for (int i = 0; i < 128; ++i) value[i] = launch.in[i * 1024 + ThreadIndex()];
  SyncThreads();
  BATON_UNROLL for (int i = 0; i < 128; ++i) {
    launch.out[i * 1024 + ThreadIndex()] = Mul(value[i], value[127 - i]);
  }
}

BATON_KERNEL(32) StackKernel(PlantedLaunch launch) {
  AwaitPrevious();
  float value[32];
  for (int i = 0; i < launch.n; ++i) value[i] = launch.in[i];
  launch.out[0] = value[FloatBits(launch.in[0]) % 32];
}

BATON_KERNEL(32) DoubleKernel(PlantedLaunch launch) {
  AwaitPrevious();
  launch.out[0] =
      static_cast<float>(static_cast<double>(launch.in[0]) * launch.in[1] + launch.in[2]);
}

BATON_KERNEL(32) ContractedKernel(PlantedLaunch launch) {
  AwaitPrevious();
  asm("add.f32 %0, %1, %2;" : "=f"(launch.out[0]) : "f"(launch.in[0]), "f"(launch.in[1]));
}

BATON_KERNEL(32) ApproximateKernel(PlantedLaunch launch) {
  AwaitPrevious();
  launch.out[0] = __fdividef(launch.in[0], launch.in[1]);
}

BATON_KERNEL(32) HalfSumKernel(PlantedLaunch launch) {
  AwaitPrevious();
  launch.out[0] = __half2float(__hadd(__float2half(launch.in[0]), __float2half(launch.in[1])));
}

__global__ void UnboundedKernel(PlantedLaunch launch) {
  AwaitPrevious();
  launch.out[0] = launch.in[0];
}

BATON_KERNEL(32) EarlyKernel(PlantedLaunch launch) {
  const Vec16 v = Load16(launch.in);
  AwaitPrevious();
  launch.out[0] = BitsFloat(v.x[0]);
}

BATON_KERNEL(32) NeverAwaitsKernel(PlantedLaunch launch) { launch.out[0] = launch.in[0]; }

// The last of the blocks adds up what all have stored, with both fences, and without the first.
template <bool kFenced>
BATON_KERNEL(32)
LastBlockKernel(PlantedLaunch launch) {
  AwaitPrevious();
  StoreGlobal(launch.out + BlockIndex().x * 32 + ThreadIndex(), launch.in[ThreadIndex()]);
  if (kFenced) ThreadFence();
  SyncThreads();
  __shared__ bool last;
  if (ThreadIndex() == 0) {
    auto* counter = reinterpret_cast<unsigned*>(launch.out + launch.n);
    last = AtomicAdd(counter, 1u) == Grid().x - 1;
    ThreadFence();
  }
  SyncThreads();
  if (!last) return;
  float sum = 0;
  for (unsigned i = 0; i < Grid().x; ++i) {
    sum = Add(sum, LoadFresh(launch.out + i * 32 + ThreadIndex()));
  }
  launch.out[ThreadIndex()] = sum;
}
template __global__ void LastBlockKernel<true>(PlantedLaunch);
template __global__ void LastBlockKernel<false>(PlantedLaunch);

}  // namespace baton::backend::cuda
