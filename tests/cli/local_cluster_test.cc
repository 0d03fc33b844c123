#include "cli/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Binaries that are shell scripts.
class LocalClusterTest : public ::testing::Test {
 protected:
  LocalClusterTest() {
    options_.model_dir = "/models/any";
    options_.bin_dir = ::testing::TempDir() + absl::StrCat("/bin-", getpid());
    options_.stop_grace = absl::Seconds(20);
    std::filesystem::create_directories(options_.bin_dir);
  }
  ~LocalClusterTest() override { std::filesystem::remove_all(options_.bin_dir); }

  void Script(const std::string& binary, const std::string& body) {
    const std::string path = options_.bin_dir + "/" + binary;
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  UpOptions options_;
  std::ostringstream out_;
};

// Writes the address file that its flags name, then waits to be stopped.
constexpr char kWellBehaved[] = R"(
while [ $# -gt 1 ]; do [ "$1" = --address-file ] && file="$2"; shift; done
echo "loading weights 50 %"
printf '127.0.0.1:1\n127.0.0.1:2\n' > "$file.tmp" && mv "$file.tmp" "$file"
trap 'echo bye; exit 0' TERM
while :; do sleep 0.05; done)";

TEST_F(LocalClusterTest, AChildThatDiesAtStartStopsAllAndIsQuoted) {
  Script("baton-prefill-worker", kWellBehaved);
  Script("baton-decode-worker", "echo \"no such dtype: $*\" >&2; exit 3");
  options_.worker_flags = {"--dtype", "f7"};
  EXPECT_EQ(LocalCluster(options_, out_).Run(), 1);
  EXPECT_THAT(out_.str(), HasSubstr("decode-0 exited with code 3. Its last lines:\n  no such"));
  EXPECT_THAT(out_.str(), HasSubstr("--listen 127.0.0.1:0"));
  EXPECT_THAT(out_.str(), HasSubstr("--dtype f7"));
}

TEST_F(LocalClusterTest, AMissingBinaryIsNamed) {
  EXPECT_EQ(LocalCluster(options_, out_).Run(), 1);
  EXPECT_THAT(out_.str(), HasSubstr("/baton-prefill-worker is not there"));
}

TEST_F(LocalClusterTest, TheRouterGetsTheAddressesAndASignalStopsAll) {
  Script("baton-prefill-worker", kWellBehaved);
  Script("baton-decode-worker", kWellBehaved);
  // Never ready; tells the test, through the signal, that it has been started.
  Script("baton-router", absl::StrCat("echo \"router $*\"\nkill -TERM ", getpid(),
                                      "\ntrap 'exit 0' TERM\nwhile :; do sleep 0.05; done"));
  options_.prefill_workers = 2;
  options_.log_dir = options_.bin_dir + "/logs";
  EXPECT_EQ(LocalCluster(options_, out_).Run(), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--prefill-workers 127.0.0.1:1,127.0.0.1:1 "
                                    "--decode-workers 127.0.0.1:1"));
  EXPECT_THAT(out_.str(), HasSubstr("[prefill-1] bye"));
  EXPECT_THAT(out_.str(), HasSubstr("Stopping."));
  std::ifstream log(options_.log_dir + "/decode-0.log");
  std::string first_line;
  std::getline(log, first_line);
  EXPECT_EQ(first_line, "loading weights 50 %");
}

TEST_F(LocalClusterTest, ADeafChildIsKilledAfterTheGrace) {
  Script("baton-prefill-worker",
         absl::StrCat("trap '' TERM\nkill -TERM ", getpid(), "\nwhile :; do sleep 0.05; done"));
  Script("baton-decode-worker", kWellBehaved);
  options_.stop_grace = absl::Milliseconds(200);
  EXPECT_EQ(LocalCluster(options_, out_).Run(), 0);
}

}  // namespace
}  // namespace baton::cli
