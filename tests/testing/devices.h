// The devices that a test of the whole computation runs on. Which they are is a matter of linking:
// baton_testing_devices has the CPU and emulated GPUs, baton_testing_gpu_devices the GPU that is
// there.
#ifndef BATON_TESTS_TESTING_DEVICES_H_
#define BATON_TESTS_TESTING_DEVICES_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"

namespace baton::testing {

struct Device {
  std::string name;  // letters, digits and _
  std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>()> make;
  // Of logits whose largest is about 6, from those of float32: its roundings on the way there.
  double logit_tolerance = 0;
  // Products with quantised weights take activations of 8 bits, so that they are only near those
  // with the float weights.
  bool rounds_activations = false;
  bool slow = false;  // emulated: a test had better do less
};
inline void PrintTo(const Device& device, std::ostream* out) { *out << device.name; }

std::vector<Device> Devices();
// Those of them that are not emulated.
inline std::vector<Device> FastDevices() {
  std::vector<Device> devices = Devices();
  std::erase_if(devices, [](const Device& device) { return device.slow; });
  return devices;
}
// Those whose products are cuBLASLt's: near, but not the same bits in every batch. None without a
// GPU.
std::vector<Device> LibraryDevices();

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_DEVICES_H_
