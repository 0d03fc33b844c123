// Tells whoever started a process on port 0 where it listens.
#ifndef BATON_COMMON_WORKER_ADDRESS_FILE_H_
#define BATON_COMMON_WORKER_ADDRESS_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace baton::worker {

// Two lines: the gRPC address, the metrics address (may be empty). Appears whole, by rename.
absl::Status WriteAddressFile(const std::string& path, const std::string& address,
                              const std::string& metrics_address);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_ADDRESS_FILE_H_
