// The CPU backend: also the reference that other backends are compared with.
#ifndef BATON_COMMON_BACKEND_CPU_CPU_BACKEND_H_
#define BATON_COMMON_BACKEND_CPU_CPU_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/backend_options.h"
#include "common/backend/cpu/kernels.h"

namespace baton::backend {

// INVALID_ARGUMENT if float16 is asked for, or bfloat16 on a CPU that does not multiply it.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options);

// The same with kernels of one's choice, which must outlive the backend, so that a test can be
// another CPU.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options,
                                                        const Kernels& kernels);

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_CPU_BACKEND_H_
