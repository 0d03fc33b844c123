// A small file in which a process reports the addresses that it listens on, for callers that start
// it with port 0.
#ifndef BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_
#define BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace baton {

// Each "host:port". The file has two lines, gRPC's first; the second is blank if `metrics` is
// empty.
struct BoundAddresses {
  std::string grpc;
  std::string metrics;
};

// Writes a temporary file beside `path` and renames it, so that readers see a whole file or none.
// UNAVAILABLE if that fails.
absl::Status WriteAddressFile(const std::string& path, const BoundAddresses& addresses);

// Returns nullopt if the file does not exist yet or cannot be read as two lines.
std::optional<BoundAddresses> ReadAddressFile(const std::string& path);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_
