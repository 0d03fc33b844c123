// Compiled for AVX-512 with BF16 (Zen 4, Cooper Lake).
#include "common/backend/cpu/kernels.h"

#if defined(__AVX512BF16__)
#include "common/backend/cpu/avx512bf16_attention.h"
#include "common/backend/cpu/kernel_table.h"
#endif

namespace baton::backend {

#if defined(__AVX512BF16__)
namespace {

struct MulBF16 {
  using X = uint16_t;
  using W = uint16_t;
  static constexpr int kStep = 2;
  static BATON_INLINE __m512bh Weights(const uint16_t* w) {
    return (__m512bh)_mm512_loadu_si512(w);
  }
  static BATON_INLINE F32x16 Add(const uint16_t* x, __m512bh w, F32x16 sum) {
    return {_mm512_dpbf16_ps(sum.v, SetPair(x), w)};
  }
};

void MatMulBF16(const MatMulSlice& slice) { MulSlice<MulBF16>(slice); }

constexpr Kernels BF16Kernels() {
  Kernels kernels = F32Kernels("avx512_bf16");
  kernels.numerics_bf16 = "vdpbf16ps";
  kernels.matmul_bf16 = MatMulBF16;
  kernels.attention_bf16 = {BF16QueryBytes, BF16ScratchBytes, PackQueryBF16, AttendBF16};
  return kernels;
}

}  // namespace

constinit const Kernels kAvx512BF16Kernels = BF16Kernels();
#else
constinit const Kernels kAvx512BF16Kernels = {};
#endif

}  // namespace baton::backend
