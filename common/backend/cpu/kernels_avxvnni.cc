// Compiled for AVX2 with AVX-VNNI (Alder Lake and later, without AVX-512).
#include "common/backend/cpu/kernels.h"

#if defined(__AVXVNNI__)
#include "common/backend/cpu/kernel_table.h"
#endif

namespace baton::backend {

#if defined(__AVXVNNI__)
constinit const Kernels kAvxVnniKernels = F32Kernels("avx_vnni");
#else
constinit const Kernels kAvxVnniKernels = {};
#endif

}  // namespace baton::backend
