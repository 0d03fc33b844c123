// A small file in which a process that listens on port 0 writes the addresses that it got. The file
// appears all at once.
#ifndef BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_
#define BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace baton {

// Two lines: the gRPC address, then the metrics address, which is empty if there is none.
struct BoundAddresses {
  std::string grpc;
  std::string metrics;
};

// Through a temporary file beside it and a rename, so that a reader sees all or nothing.
absl::Status WriteAddressFile(const std::string& path, const BoundAddresses& addresses);

// Nothing while the file is not there.
std::optional<BoundAddresses> ReadAddressFile(const std::string& path);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_
