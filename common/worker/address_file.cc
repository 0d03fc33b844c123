#include "common/worker/address_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace baton::worker {

absl::Status WriteAddressFile(const std::string& path, const std::string& address,
                              const std::string& metrics_address) {
  const std::string temporary = path + ".tmp";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << address << "\n" << metrics_address << "\n";
    if (!file.flush()) {
      return absl::UnavailableError(absl::StrCat("--address-file: cannot write ", temporary, ": ",
                                                 std::strerror(errno)));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--address-file: cannot rename ", temporary, " to ",
                                               path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace baton::worker
