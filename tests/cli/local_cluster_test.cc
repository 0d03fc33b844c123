#include "cli/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <iterator>
#include <memory>

#include "tests/cli/script_binaries.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Processes are scripts that say that they listen where workers and a router of this process do.
class LocalClusterTest : public ::testing::Test {
 protected:
  LocalClusterTest() {
    binaries_.Write("baton-prefill-worker", WellBehaved({fakes_.prefill(0)->address(), ""}));
    binaries_.Write("baton-decode-worker", WellBehaved({fakes_.decode(0)->address(), "1.2.3.4:5"}));
    binaries_.Write("baton-router", WellBehaved({fakes_.server().address(), ""}));
    options_.model_dir = "/models/any";
    options_.bin_dir = binaries_.directory();
  }

  static std::string LogOf(const LocalCluster& cluster, const std::string& name) {
    std::ifstream log(cluster.work_dir() + "/" + name + ".log");
    return std::string(std::istreambuf_iterator<char>(log), {});
  }

  ScriptBinaries binaries_;
  testing::FakeCluster fakes_;
  ClusterOptions options_;
};

// The secret is in a file that only this user reads, and on no command line.
TEST_F(LocalClusterTest, MakesASecretForItsWorkers) {
  LocalCluster cluster(options_), other(options_);
  ASSERT_TRUE(cluster.Start().ok());
  ASSERT_TRUE(other.Start().ok());
  const std::string path = cluster.work_dir() + "/worker.secret";
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::ifstream file(path);
  std::string secret;
  ASSERT_TRUE(std::getline(file, secret));
  EXPECT_GE(secret.size(), 43u);
  EXPECT_THAT(cluster.worker_security().headers(),
              ElementsAre(::testing::Pair("baton-worker-secret", secret)));
  EXPECT_NE(other.worker_security().headers(), cluster.worker_security().headers());
  for (const std::string& name : cluster.names()) {
    EXPECT_THAT(LogOf(cluster, name), HasSubstr("--worker-secret-file " + path)) << name;
    EXPECT_THAT(LogOf(cluster, name), Not(HasSubstr(secret))) << name;
  }
}

TEST_F(LocalClusterTest, StartsAllAndStartsOneAgainAtItsAddresses) {
  options_.name_workers = true;
  LocalCluster cluster(options_);
  const absl::Status started = cluster.Start();
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_THAT(cluster.names(), ElementsAre("prefill-0", "decode-0", "router"));
  EXPECT_THAT(cluster.workers("decode"), ElementsAre("decode-0"));
  EXPECT_EQ(cluster.address("router"), fakes_.server().address());
  EXPECT_EQ(cluster.metrics_address("decode-0"), "1.2.3.4:5");
  EXPECT_THAT(LogOf(cluster, "router"),
              HasSubstr("--prefill-workers " + fakes_.prefill(0)->address() + " --decode-workers " +
                        fakes_.decode(0)->address()));
  EXPECT_THAT(LogOf(cluster, "decode-0"), HasSubstr("--worker-id decode-0"));
  const pid_t before = cluster.pid("decode-0");
  const absl::Status restarted = cluster.Restart("decode-0", {"--block-size", "32"});
  ASSERT_TRUE(restarted.ok()) << restarted;
  EXPECT_NE(cluster.pid("decode-0"), before);
  EXPECT_THAT(LogOf(cluster, "decode-0"), HasSubstr("--listen " + fakes_.decode(0)->address() +
                                                    " --metrics-listen 1.2.3.4:5 --block-size 32"));
  EXPECT_TRUE(cluster.AwaitReady("router").ok());
}

TEST_F(LocalClusterTest, AnEndIsReportedUnlessItWasAskedFor) {
  LocalCluster cluster(options_);
  ASSERT_TRUE(cluster.Start().ok());
  EXPECT_TRUE(cluster.CheckAlive().ok());
  cluster.Signal("decode-0", SIGKILL);
  ASSERT_TRUE(cluster.process("decode-0").AwaitEnd(absl::Seconds(60)));
  EXPECT_THAT(std::string(cluster.CheckAlive().message()),
              HasSubstr("decode-0 was killed by signal 9. Its last lines:\n  loading weights"));
  cluster.Kill("decode-0");
  EXPECT_TRUE(cluster.CheckAlive().ok());
  cluster.Signal("decode-0", SIGTERM);  // nothing is there
  EXPECT_TRUE(cluster.Restart("decode-0").ok());
}

TEST_F(LocalClusterTest, RoutersGetTheAddressesThatTheyAreToUse) {
  options_.prefill_workers = 0;
  options_.more_decode_addresses = {"127.0.0.1:1"};
  options_.ready_timeout = absl::Seconds(1);
  options_.routed_address = [](const std::string& name, const std::string&) {
    return "127.0.0.1:2/" + name;
  };
  LocalCluster cluster(options_);
  const absl::Status started = cluster.Start();
  EXPECT_THAT(LogOf(cluster, "router"),
              HasSubstr("--decode-workers 127.0.0.1:2/decode-0,127.0.0.1:1"));
  EXPECT_THAT(LogOf(cluster, "router"), Not(HasSubstr("--prefill-workers")));
  // The router knows no worker at that address.
  EXPECT_TRUE(absl::IsDeadlineExceeded(started)) << started;
  EXPECT_THAT(std::string(started.message()), HasSubstr("router reports nothing of decode-0"));
}

TEST_F(LocalClusterTest, LogsMayStay) {
  std::string kept, removed;
  for (std::string* directory : {&kept, &removed}) {
    LocalCluster cluster(options_);
    ASSERT_TRUE(cluster.Start().ok());
    *directory = cluster.work_dir();
    if (directory == &kept) cluster.KeepLogs();
  }
  EXPECT_TRUE(std::filesystem::exists(kept + "/router.log"));
  EXPECT_FALSE(std::filesystem::exists(removed));
  std::filesystem::remove_all(kept);
}

}  // namespace
}  // namespace baton::cli
