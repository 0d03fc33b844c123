// The kernels that use AMX, with tiles in software: what they load, where from, and in which order
// it is added up, is tested on every CPU with AVX-512 BF16. Only what the instructions themselves
// do is an assumption; a CPU with AMX tests that.
#ifndef BATON_TESTS_COMMON_BACKEND_CPU_EMULATED_AMX_H_
#define BATON_TESTS_COMMON_BACKEND_CPU_EMULATED_AMX_H_

#include "common/backend/cpu/kernels.h"

namespace baton::backend {

// No name where the compiler does not target AVX-512 BF16.
extern const Kernels kEmulatedAmxKernels;

}  // namespace baton::backend

#endif  // BATON_TESTS_COMMON_BACKEND_CPU_EMULATED_AMX_H_
