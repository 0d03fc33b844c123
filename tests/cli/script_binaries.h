// Stand-ins for Baton's programs: shell scripts in a directory of their own.
#ifndef BATON_TESTS_CLI_SCRIPT_BINARIES_H_
#define BATON_TESTS_CLI_SCRIPT_BINARIES_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/rpc/address_file.h"

namespace baton::cli {

class ScriptBinaries {
 public:
  ScriptBinaries() : directory_(::testing::TempDir() + absl::StrCat("/bin-", getpid())) {
    std::filesystem::create_directories(directory_);
  }
  ~ScriptBinaries() { std::filesystem::remove_all(directory_); }

  const std::string& directory() const { return directory_; }
  void Write(const std::string& binary, const std::string& body) const {
    const std::string path = directory_ + "/" + binary;
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

 private:
  const std::string directory_;
};

// A body that prints its flags, writes `bound` to the file that --address-file names, and runs
// until SIGTERM.
inline std::string WellBehaved(const BoundAddresses& bound) {
  return absl::StrCat(R"(echo "loading weights 50 %, flags: $*"
while [ $# -gt 1 ]; do [ "$1" = --address-file ] && file="$2"; shift; done
printf ')",
                      bound.grpc, "\\n", bound.metrics,
                      R"(\n' > "$file.tmp" && mv "$file.tmp" "$file"
trap 'echo bye; exit 0' TERM
while :; do sleep 0.05; done)");
}

}  // namespace baton::cli

#endif  // BATON_TESTS_CLI_SCRIPT_BINARIES_H_
