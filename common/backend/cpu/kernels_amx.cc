// Compiled for AVX-512 with BF16 and AMX (Sapphire Rapids and later).
#include "common/backend/cpu/kernels.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include "common/backend/cpu/amx_kernels.h"
#endif

namespace baton::backend {

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
constinit const Kernels kAmxKernels = AmxKernels("amx");
#else
constinit const Kernels kAmxKernels = {};
#endif

}  // namespace baton::backend
