#include "common/backend/make_backend.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/backend/cpu/cpu_backend.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

#if BATON_CUDA
#include "common/backend/cuda/cuda_backend.h"
#endif

namespace baton::backend {
namespace {

constexpr int kMostDevices = 1024;

#if !BATON_CUDA
absl::StatusOr<int> CudaDeviceCount() { return 0; }

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options, int index) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "NO_CUDA",
                   absl::StrCat("cuda:", index,
                                ": this was built without CUDA, expected a build of the preset "
                                "cuda-release, or --device cpu"));
}
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeBest(const absl::StatusOr<int>& gpus,
                                                  MakeDevice make_gpu, MakeDevice make_cpu) {
  absl::Status unusable = gpus.status();
  if (gpus.ok()) {
    if (*gpus == 0) return make_cpu();
    auto gpu = make_gpu();
    // A GPU that is too old is no reason not to start. What else is wrong with it is nothing to
    // pass over in silence.
    if (gpu.status().code() != absl::StatusCode::kFailedPrecondition) return gpu;
    unusable = gpu.status();
  }
  BATON_LOG(Warning) << "computing on the CPU: " << unusable.message();
  return make_cpu();
}

absl::StatusOr<Device> ParseDevice(absl::string_view text) {
  if (text == "cpu") return Device{Device::Kind::kCpu, 0};
  if (text == "auto") return Device{Device::Kind::kAuto, 0};
  if (text == "cuda") return Device{Device::Kind::kCuda, 0};
  absl::string_view digits = text;
  int index = 0;
  const bool named = absl::ConsumePrefix(&digits, "cuda:") && !digits.empty() &&
                     digits.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!named || !absl::SimpleAtoi(digits, &index) || index >= kMostDevices) {
    return InvalidField("BAD_OPTION", "--device",
                        absl::StrCat("\"", text,
                                     "\" given, expected cpu, auto or cuda:N with N "
                                     "from 0 to ",
                                     kMostDevices - 1));
  }
  return Device{Device::Kind::kCuda, index};
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  BATON_ASSIGN_OR_RETURN(const Device device, ParseDevice(options.device));
  if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1)) {
    return InvalidField(
        "BAD_OPTION", "--gpu-memory-utilization",
        absl::StrCat(options.gpu_memory_utilization, " given, expected more than 0 and at most 1"));
  }
  switch (device.kind) {
    case Device::Kind::kCpu:
      return MakeCpuBackend(options);
    case Device::Kind::kCuda:
      return MakeCudaBackend(options, device.index);
    case Device::Kind::kAuto:
      return MakeBest(
          CudaDeviceCount(), [&] { return MakeCudaBackend(options, 0); },
          [&] { return MakeCpuBackend(options); });
  }
  BATON_CHECK(false) << "unknown device";
  return absl::InternalError("");
}

}  // namespace baton::backend
