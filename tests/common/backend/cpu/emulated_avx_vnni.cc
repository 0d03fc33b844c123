// Compiled for AVX-512, whose VPDPBUSD stands for that of AVX-VNNI; all else as on such a CPU.
#include "tests/common/backend/cpu/emulated_kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#include <immintrin.h>

#undef __AVX512F__
#undef __AVX512VNNI__
#undef __AVX512BF16__
#undef __AVXVNNI__
#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32(sum, w, x) _mm256_dpbusd_epi32(sum, w, x)

#include "common/backend/cpu/kernel_table.h"

namespace baton::backend {
constinit const Kernels kEmulatedAvxVnniKernels = F32Kernels("emulated_avx_vnni");
}  // namespace baton::backend
#else
namespace baton::backend {
constinit const Kernels kEmulatedAvxVnniKernels = {};
}  // namespace baton::backend
#endif
