// Compiled for AVX-512 F, BW, DQ and VL.
#include "common/backend/cpu/kernels.h"

#if defined(__AVX512F__)
#include "common/backend/cpu/kernel_table.h"
#endif

namespace baton::backend {

#if defined(__AVX512F__)
constinit const Kernels kAvx512Kernels = F32Kernels("avx512");
#else
constinit const Kernels kAvx512Kernels = {};
#endif

}  // namespace baton::backend
