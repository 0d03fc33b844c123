#include "common/backend/cpu/kernels.h"

namespace baton::backend {

constinit const Kernels kAmxKernels = {};

}  // namespace baton::backend
