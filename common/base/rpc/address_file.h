// A small file in which a process reports the addresses that it listens on, for callers that start
// it with port 0.
#ifndef BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_
#define BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace baton {

// Each "host:port". The file has a line for each, in this order; the line of an empty one is blank.
struct BoundAddresses {
  std::string grpc;
  std::string metrics;
  std::string http = "";  // of a router
};

// Writes a temporary file beside `path` and renames it, so that readers see a whole file or none.
// UNAVAILABLE if that fails.
absl::Status WriteAddressFile(const std::string& path, const BoundAddresses& addresses);

// Returns nullopt if the file does not exist yet or lacks the first two lines.
std::optional<BoundAddresses> ReadAddressFile(const std::string& path);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_ADDRESS_FILE_H_
