// Which of the kernel tables this process can run.
#ifndef BATON_COMMON_BACKEND_CPU_ISA_H_
#define BATON_COMMON_BACKEND_CPU_ISA_H_

#include <vector>

#include "common/backend/cpu/kernels.h"

namespace baton::backend {

// Ascending, as BestIsa prefers them. A CPU with one has those before it, too, but for kAvxVnni,
// which CPUs with AVX-512 may lack.
enum class Isa { kPortable, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAvx512BF16, kAmx };

// The best that CPU, kernel and build allow. Asks the kernel for AMX's tile registers.
Isa BestIsa();

// Without a name if the build lacks them. They run only on a CPU that has the instructions.
const Kernels& KernelsOf(Isa isa);

// All that this process can run, ascending.
std::vector<const Kernels*> UsableKernels();

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_ISA_H_
