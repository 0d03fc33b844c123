#include <cstdlib>

#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/make_backend.h"
#include "tests/testing/devices.h"

namespace baton::testing {
namespace {

using backend::BackendOptions;

Device Gpu(const std::string& name, BackendOptions::Compute compute, bool deterministic) {
  const bool f16 = compute == BackendOptions::Compute::kF16;
  Device device;
  device.name = "gpu_" + name;
  device.logit_tolerance = f16 ? 0.05 : 0.4;
  device.make = [=] {
    BackendOptions options;
    options.compute = compute;
    options.deterministic = deterministic;
    // Several backends may live at once.
    options.gpu_memory_utilization = 0.1;
    options.cuda.as_t4 = std::getenv("BATON_T4_MODE") != nullptr;
    return backend::MakeCudaBackend(options, 0);
  };
  return device;
}

}  // namespace

// float16 everywhere; bfloat16 where the GPU has it and is not to be taken for a T4.
std::vector<Device> Devices() {
  std::vector<Device> devices = {Gpu("float16", BackendOptions::Compute::kF16, true)};
  Device bf16 = Gpu("bfloat16", BackendOptions::Compute::kBF16, true);
  if (bf16.make().ok()) devices.push_back(std::move(bf16));
  return devices;
}

std::vector<Device> LibraryDevices() {
  std::vector<Device> devices = {Gpu("cublas_float16", BackendOptions::Compute::kF16, false)};
  Device bf16 = Gpu("cublas_bfloat16", BackendOptions::Compute::kBF16, false);
  if (bf16.make().ok()) devices.push_back(std::move(bf16));
  return devices;
}

}  // namespace baton::testing
