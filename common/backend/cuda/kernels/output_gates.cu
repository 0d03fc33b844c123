#include "common/backend/cuda/kernels/recurrence.cuh"
#include "common/backend/cuda/kernels/recurrence.h"

namespace baton::backend::cuda {
namespace {

// What GatedNorm normalises.
BATON_DEVICE float NormInput(const GatedNormLaunch& launch, float x, float silu) {
  return launch.gate_first ? Mul(silu, x) : x;
}

constexpr int kNormThreads = 512, kGateThreads = 128;

template <class Element>
BATON_KERNEL(kNormThreads)
GatedNormKernel(GatedNormLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x / static_cast<unsigned>(launch.groups);
  const int first =
      static_cast<int>(BlockIndex().x % static_cast<unsigned>(launch.groups)) * launch.group;
  const float* x = launch.x + row * launch.x_stride + first;
  const float* gate = launch.gate + row * launch.gate_stride + first;
  float squares = 0;
  for (int i = ThreadIndex(); i < launch.group; i += BlockThreads()) {
    const float silu = launch.gate_first ? Silu(LoadFloat(gate + i)) : 0.0f;
    const float value = NormInput(launch, LoadFloat(x + i), silu);
    squares = Fma(value, value, squares);
  }
  const float sum =
      BlockSum(squares, BlockThreads() / kWarpLanes, reinterpret_cast<float*>(SharedMemory()));
  const float mean = Divide(sum, static_cast<float>(launch.group));
  const float inverse = Divide(1.0f, SquareRoot(Add(mean, launch.eps)));
  const float* weight = launch.weight + first % launch.weight_size;
  for (int i = ThreadIndex(); i < launch.group; i += BlockThreads()) {
    const float silu = Silu(LoadFloat(gate + i));
    float y = Mul(NormInput(launch, LoadFloat(x + i), silu), inverse);
    y = Mul(y, LoadFloat(weight + i));
    if (!launch.gate_first) y = Mul(silu, y);
    StoreGlobal(static_cast<uint16_t*>(launch.out) + row * launch.out_stride + first + i,
                Element::FromF32(y));
  }
}

// A thread has two columns.
template <class Element>
BATON_KERNEL(kGateThreads)
OutputGateKernel(OutputGateLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  const int column = 2 * (static_cast<int>(BlockIndex().y) * kGateThreads + ThreadIndex());
  if (column >= launch.cols) return;
  const float* gates = launch.gate + row * launch.gate_stride;
  const auto gated = [&](int of, uint32_t bits) {
    const int64_t at =
        launch.group == 0 ? 0 : of / launch.group * launch.group_stride + of % launch.group;
    return Mul(Element::ToF32(static_cast<uint16_t>(bits)), Sigmoid(LoadFloat(gates + at)));
  };
  auto* const x = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(launch.x) +
                                              row * launch.x_stride + column);
  const uint32_t two = LoadGlobal(x);
  StoreGlobal(x, Element::Pack(gated(column, two), gated(column + 1, two >> 16)));
}

// body(Half or BFloat16)
template <class Body>
void WithElement(DType dtype, const Body& body) {
  return dtype == DType::kF16 ? body(Half{}) : body(BFloat16{});
}

unsigned Tiles(int size, int tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

}  // namespace

void LaunchGatedNorm(const GatedNormLaunch& launch, DType out_dtype, int rows, Stream stream) {
  if (rows == 0) return;
  // Four elements a thread, where that are not too many threads.
  const int quads = static_cast<int>(Tiles(launch.group, 4 * kWarpLanes)) * kWarpLanes;
  const int threads = quads < kNormThreads ? quads : kNormThreads;
  WithElement(out_dtype, [&](auto element) {
    Launch(GatedNormKernel<decltype(element)>, {static_cast<unsigned>(rows * launch.groups), 1, 1},
           threads, static_cast<size_t>(threads / kWarpLanes) * sizeof(float), stream, launch);
  });
}

void LaunchOutputGate(const OutputGateLaunch& launch, DType dtype, int rows, Stream stream) {
  if (rows == 0) return;
  WithElement(dtype, [&](auto element) {
    Launch(OutputGateKernel<decltype(element)>,
           {static_cast<unsigned>(rows), Tiles(launch.cols, 2 * kGateThreads), 1}, kGateThreads, 0,
           stream, launch);
  });
}

}  // namespace baton::backend::cuda
