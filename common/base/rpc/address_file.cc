#include "common/base/rpc/address_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace baton {

absl::Status WriteAddressFile(const std::string& path, const BoundAddresses& addresses) {
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::trunc);
  out << addresses.grpc << "\n" << addresses.metrics << "\n" << addresses.http << "\n";
  out.close();
  if (!out.good() || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot write the address file ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

std::optional<BoundAddresses> ReadAddressFile(const std::string& path) {
  std::ifstream in(path);
  BoundAddresses addresses;
  if (!std::getline(in, addresses.grpc) || !std::getline(in, addresses.metrics)) {
    return std::nullopt;
  }
  std::getline(in, addresses.http);
  return addresses;
}

}  // namespace baton
