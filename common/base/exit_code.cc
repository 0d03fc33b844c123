#include "common/base/exit_code.h"

#include <string>

#include "common/base/error.h"

namespace baton {

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return kExitUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailure;
  }
}

int ExitCodeOfStart(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  if (!absl::IsFailedPrecondition(status)) return kExitFailure;
  const std::string reason = ErrorReason(status);
  for (const char* of_flag : {"NO_CUDA", "NCCL", "DEVICE_LINK", "SHARED_MEMORY"}) {
    if (reason == of_flag) return kExitUsage;
  }
  return kExitFailure;
}

}  // namespace baton
