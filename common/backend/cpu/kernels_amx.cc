// Compiled for AVX-512 with BF16 and AMX (Sapphire Rapids and later).
#include "common/backend/cpu/kernels.h"

#if defined(__AMX_BF16__)
#include "common/backend/cpu/amx_attention.h"
#include "common/backend/cpu/amx_matmul.h"
#include "common/backend/cpu/kernel_table.h"
#endif

namespace baton::backend {

#if defined(__AMX_BF16__)
namespace {

constexpr Kernels AmxKernels() {
  Kernels kernels = F32Kernels("amx");
  kernels.matmul_bf16 = MatMulAmx;
  kernels.pack_rows = PackRowsAmx;
  kernels.attention_bf16 = {BF16QueryBytes, BF16ScratchBytes, PackQueryAmx, AttendAmx};
  return kernels;
}

}  // namespace

constinit const Kernels kAmxKernels = AmxKernels();
#else
constinit const Kernels kAmxKernels = {};
#endif

}  // namespace baton::backend
