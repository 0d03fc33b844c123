// Kernels for instruction sets that most machines lack, made of others, so that every CPU with
// AVX-512 BF16 tests what they load, where from, and in which order it is added up. Only what the
// instructions themselves do is an assumption; a CPU that has them tests that.
#ifndef BATON_TESTS_COMMON_BACKEND_CPU_EMULATED_KERNELS_H_
#define BATON_TESTS_COMMON_BACKEND_CPU_EMULATED_KERNELS_H_

#include "common/backend/cpu/kernels.h"

namespace baton::backend {

// Without a name where the compiler does not target AVX-512 BF16. They need a CPU that has it.
extern const Kernels kEmulatedAvxVnniKernels;  // VPDPBUSD of AVX-512
extern const Kernels kEmulatedAmxKernels;      // tiles in memory

}  // namespace baton::backend

#endif  // BATON_TESTS_COMMON_BACKEND_CPU_EMULATED_KERNELS_H_
