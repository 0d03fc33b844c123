// The backend of the device that the options name.
#ifndef BATON_COMMON_BACKEND_MAKE_BACKEND_H_
#define BATON_COMMON_BACKEND_MAKE_BACKEND_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/backend/backend.h"
#include "common/backend/backend_options.h"

namespace baton::backend {

struct Device {
  enum class Kind { kCpu, kCuda, kAuto };
  Kind kind = Kind::kCpu;
  int index = 0;  // of kCuda: as the driver counts

  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda:0" to "cuda:1023" or "auto"; "cuda" is "cuda:0". INVALID_ARGUMENT (BAD_OPTION).
absl::StatusOr<Device> ParseDevice(absl::string_view text);

// INVALID_ARGUMENT (BAD_OPTION) if an option is wrong or the device does not support it;
// FAILED_PRECONDITION (NO_CUDA) for a GPU in a build without CUDA; other errors as MakeCudaBackend.
// "auto" takes the first GPU; if that is unusable, it logs the reason and takes the CPU.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

// What "auto" takes: the GPU if there is one, the CPU if there is none, or if the driver or the GPU
// cannot be used (FAILED_PRECONDITION), which is logged. Other errors of the GPU are returned.
using MakeDevice = absl::FunctionRef<absl::StatusOr<std::unique_ptr<Backend>>()>;
absl::StatusOr<std::unique_ptr<Backend>> MakeBest(const absl::StatusOr<int>& gpus,
                                                  MakeDevice make_gpu, MakeDevice make_cpu);

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_MAKE_BACKEND_H_
