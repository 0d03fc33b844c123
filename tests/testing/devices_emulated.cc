#include <string>

#include "common/backend/cpu/cpu_backend.h"
#include "common/backend/cuda/cuda_backend.h"
#include "tests/testing/devices.h"

namespace baton::testing {
namespace {

constexpr size_t kMemoryBytes = size_t{192} << 20;

// bfloat16 keeps 8 bits, float16 11: errors of 2^-9 and 2^-12 at each of some 20 roundings.
Device Emulated(int compute_capability, backend::DType dtype) {
  const bool f16 = dtype == backend::DType::kF16;
  Device device;
  device.name = "emulated_sm_" + std::to_string(compute_capability) + "_" + Name(dtype);
  device.logit_tolerance = f16 ? 0.05 : 0.4;
  device.slow = true;
  device.make = [compute_capability, f16] {
    return backend::cuda::MakeBackendOn(
        backend::cuda::MakeEmulatedRuntime(compute_capability, kMemoryBytes, 11), nullptr,
        {.compute = f16 ? backend::BackendOptions::Compute::kF16
                        : backend::BackendOptions::Compute::kBF16});
  };
  return device;
}

}  // namespace

std::vector<Device> Devices() {
  Device cpu;
  cpu.name = "cpu_float32";
  cpu.logit_tolerance = 1e-4;
  cpu.make = [] {
    return backend::MakeCpuBackend({.compute = backend::BackendOptions::Compute::kF32,
                                    .dequantize_weights = true,
                                    .thread_count = 2});
  };
  Device native;
  native.name = "cpu_auto";
  native.logit_tolerance = 0.25;
  native.rounds_activations = true;
  native.make = [] { return backend::MakeCpuBackend({.thread_count = 2}); };
  return {cpu, native, Emulated(75, backend::DType::kF16), Emulated(80, backend::DType::kBF16)};
}

std::vector<Device> LibraryDevices() { return {}; }

}  // namespace baton::testing
