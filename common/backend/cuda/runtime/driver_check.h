// What a failed count of GPUs means. Pure host code: needs no GPU.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_DRIVER_CHECK_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_DRIVER_CHECK_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::backend::cuda {

// CUDA versions as its functions give them: 12080 is 12.8.
struct DriverState {
  int driver = 0;           // the newest CUDA that the driver supports; 0: there is no driver
  int runtime = 0;          // the CUDA of this program
  bool no_device = false;   // the driver says that there is no GPU
  absl::string_view error;  // the text of the failed call
};

// Returns 0 if there is no driver or no GPU: nothing is wrong with such a machine.
// FAILED_PRECONDITION (DEVICE_UNUSABLE) otherwise; of a driver that is too old the message has the
// version found, the version needed, and what to do.
absl::StatusOr<int> CountAfterError(const DriverState& state);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_DRIVER_CHECK_H_
