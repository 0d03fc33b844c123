#include "common/backend/cpu/kernel_table.h"

namespace baton::backend {

constinit const Kernels kPortableKernels = F32Kernels("portable");

}  // namespace baton::backend
