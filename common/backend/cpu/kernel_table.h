// The table of everything that needs no instruction beyond simd16.h. For kernels_*.cc only.
#ifndef BATON_COMMON_BACKEND_CPU_KERNEL_TABLE_H_
#define BATON_COMMON_BACKEND_CPU_KERNEL_TABLE_H_

#include "common/backend/cpu/attention_kernels.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/kv_codes.h"
#include "common/backend/cpu/matmul_kernels.h"
#include "common/backend/cpu/quantized_kernels.h"
#include "common/backend/cpu/recurrence_kernels.h"
#include "common/backend/cpu/vector_kernels.h"

namespace baton::backend {
namespace {

constexpr Kernels F32Kernels(const char* name) {
  Kernels kernels;
  kernels.name = name;
#if defined(__FMA__)
  kernels.numerics = "fma";
#else
  kernels.numerics = "portable";
#endif
  kernels.norm = Norm;
  kernels.rope = RopeHead;
  kernels.gate = Gate;
  kernels.scale = ScaleRow;
  kernels.to_f32 = ToF32;
  kernels.from_f32 = FromF32;
  kernels.short_conv = ConvolveRun;
  kernels.gated_delta = GatedDeltaHead;
  kernels.state_space = StateSpaceHead;
  kernels.gated_norm = GatedNorm;
  kernels.gate_output = GateOutput;
  kernels.quantize = QuantizeRow;
  kernels.round_activations = RoundActivations;
  kernels.matmul_quantized = MatMulQuantized;
  kernels.matmul_f32 = MatMulF32;
  kernels.attention_f32 = {PackedQueryBytes, AttentionScratchBytes, PackQuery, AttendF32};
  kernels.combine = CombineSplit;
  kernels.finish = FinishRow;
  return kernels;
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_KERNEL_TABLE_H_
