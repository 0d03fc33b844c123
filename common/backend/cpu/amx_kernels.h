// The table of the kernels that use AMX. For kernels_amx.cc, and for tests that emulate the tiles.
#ifndef BATON_COMMON_BACKEND_CPU_AMX_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_AMX_KERNELS_H_

#include "common/backend/cpu/amx_attention.h"
#include "common/backend/cpu/amx_matmul.h"
#include "common/backend/cpu/amx_quantized.h"
#include "common/backend/cpu/kernel_table.h"

namespace baton::backend {
namespace {

constexpr Kernels AmxKernels(const char* name) {
  Kernels kernels = F32Kernels(name);
  kernels.numerics_bf16 = "tdpbf16ps";
  kernels.matmul_bf16 = MatMulAmx;
  kernels.pack_rows = PackRowsAmx;
  kernels.matmul_quantized = MatMulQuantizedAmx;
  kernels.attention_bf16 = {BF16QueryBytes, BF16ScratchBytes, PackQueryAmx, AttendAmx};
  return kernels;
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AMX_KERNELS_H_
