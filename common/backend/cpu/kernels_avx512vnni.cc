// Compiled for AVX-512 with VNNI (Cascade Lake, Ice Lake).
#include "common/backend/cpu/kernels.h"

#if defined(__AVX512VNNI__)
#include "common/backend/cpu/kernel_table.h"
#endif

namespace baton::backend {

#if defined(__AVX512VNNI__)
constinit const Kernels kAvx512VnniKernels = F32Kernels("avx512_vnni");
#else
constinit const Kernels kAvx512VnniKernels = {};
#endif

}  // namespace baton::backend
