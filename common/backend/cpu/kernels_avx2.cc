// Compiled for AVX2, FMA and F16C.
#include "common/backend/cpu/kernels.h"

#if defined(__AVX2__)
#include "common/backend/cpu/kernel_table.h"
#endif

namespace baton::backend {

#if defined(__AVX2__)
constinit const Kernels kAvx2Kernels = F32Kernels("avx2");
#else
constinit const Kernels kAvx2Kernels = {};
#endif

}  // namespace baton::backend
