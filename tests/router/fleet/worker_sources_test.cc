#include "router/fleet/worker_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "tests/testing/fake_resolver.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Workers = std::vector<WorkerAddress>;
constexpr absl::Duration kPatience = absl::Seconds(20);

constexpr v1::WorkerRole kPrefillRole = v1::WORKER_ROLE_PREFILL,
                         kDecodeRole = v1::WORKER_ROLE_DECODE;

std::string ErrorOf(absl::string_view text) {
  return std::string(ParseWorkers(text).status().message());
}

TEST(WorkersFileTest, LinesCommentsAndSpaces) {
  const auto workers = ParseWorkers(
      "\xEF\xBB\xBF# the cluster\n"
      "prefill 10.0.0.1:7000\r\n"
      "\n"
      "\t decode   [fe80::1]:7001  # new\n"
      "decode host-2.example:65535");
  ASSERT_TRUE(workers.ok()) << workers.status();
  EXPECT_THAT(*workers, ElementsAre(WorkerAddress{kPrefillRole, "10.0.0.1:7000"},
                                    WorkerAddress{kDecodeRole, "[fe80::1]:7001"},
                                    WorkerAddress{kDecodeRole, "host-2.example:65535"}));
}

TEST(WorkersFileTest, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_THAT(ErrorOf("decode a:1\nrouter b:1"), HasSubstr("line 2: \"router b:1\", expected"));
  EXPECT_THAT(ErrorOf("decode a:1 b:1"), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("decode"), HasSubstr("line 1"));
  for (const char* address :
       {"a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1x", "a:-1", "fe80::1:1"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("decode ", address)),
                HasSubstr(absl::StrCat("line 1: \"", address, "\" is not host:port")));
  }
  EXPECT_THAT(ErrorOf(""), HasSubstr("no decode worker"));
  EXPECT_THAT(ErrorOf("prefill a:1"), HasSubstr("no decode worker"));
}

class FileTest : public ::testing::Test {
 protected:
  testing::ModelDir dir_;  // any directory of our own does
  WorkersFile file_{dir_.PathOf("workers")};
};

TEST_F(FileTest, AChangeCountsWhenTwoLooksHaveFoundIt) {
  dir_.Write("workers", "decode a:1\n");
  ASSERT_TRUE(file_.Look().ok());
  dir_.Write("workers", "decode a:1\ndecode b:1\n");
  auto look = file_.Look();
  ASSERT_TRUE(look.ok());
  EXPECT_FALSE(look->has_value()) << "it may be half written";
  // Meanwhile the writer went on: the same length at the same time would deceive its timestamp.
  dir_.Write("workers", "decode a:1\ndecode c:1\n");
  EXPECT_FALSE(file_.Look()->has_value());
  look = file_.Look();
  ASSERT_TRUE(look.ok() && look->has_value());
  EXPECT_THAT(**look,
              ElementsAre(WorkerAddress{kDecodeRole, "a:1"}, WorkerAddress{kDecodeRole, "c:1"}));
}

TEST_F(FileTest, TheFirstLookNeedsNoSecond) {
  dir_.Write("workers", "decode a:1\n");
  const auto look = file_.Look();
  ASSERT_TRUE(look.ok());
  EXPECT_TRUE(look->has_value());
}

TEST_F(FileTest, BadAndMissingFilesAreErrorsWithTheirPath) {
  auto look = file_.Look();
  EXPECT_EQ(ErrorReason(look.status()), "BAD_WORKERS_FILE");
  EXPECT_THAT(std::string(look.status().message()), HasSubstr("No such file"));
  dir_.Write("workers", "nonsense\n");
  look = file_.Look();
  EXPECT_EQ(ErrorReason(look.status()), "BAD_WORKERS_FILE");
  EXPECT_THAT(std::string(look.status().message()), HasSubstr("/workers: line 1"));
  dir_.Write("workers", std::string(WorkersFile::kMaxBytes + 1, '\n'));
  EXPECT_THAT(std::string(file_.Look().status().message()), HasSubstr("longer than"));
  std::filesystem::remove(dir_.PathOf("workers"));
  std::filesystem::create_directory(dir_.PathOf("workers"));
  EXPECT_FALSE(file_.Look().ok());
}

TEST_F(FileTest, ALastLineThatDoesNotEndIsNotTaken) {
  dir_.Write("workers", "decode a:5");
  EXPECT_EQ(ErrorReason(file_.Look().status()), "BAD_WORKERS_FILE") << "not at the start, either";
  dir_.Write("workers", "decode a:50051\n");
  EXPECT_FALSE(file_.Look()->has_value());
  EXPECT_TRUE(file_.Look()->has_value());
  // Its writer pauses in the middle of a line, which is a good one.
  dir_.Write("workers", "decode a:50051\ndecode b:5");
  EXPECT_FALSE(file_.Look()->has_value());
  const auto look = file_.Look();
  EXPECT_EQ(ErrorReason(look.status()), "BAD_WORKERS_FILE");
  EXPECT_THAT(std::string(look.status().message()), HasSubstr("does not end"));
  dir_.Write("workers", "decode a:50051\ndecode b:50052\n");
  EXPECT_FALSE(file_.Look()->has_value());
  EXPECT_THAT(**file_.Look(), ElementsAre(WorkerAddress{kDecodeRole, "a:50051"},
                                          WorkerAddress{kDecodeRole, "b:50052"}));
}

TEST_F(FileTest, WhatIsNotARegularFileIsNotRead) {
  // Nobody writes into it, so to open or read it as a file would wait for ever.
  ASSERT_EQ(mkfifo(dir_.PathOf("workers").c_str(), 0600), 0);
  const auto look = file_.Look();
  EXPECT_EQ(ErrorReason(look.status()), "BAD_WORKERS_FILE");
  EXPECT_THAT(std::string(look.status().message()), HasSubstr("not a regular file"));
  // Behind a symbolic link there may be a file, as Kubernetes mounts them.
  dir_.Write("real", "decode a:1\n");
  std::filesystem::remove(dir_.PathOf("workers"));
  std::filesystem::create_symlink(dir_.PathOf("real"), dir_.PathOf("workers"));
  EXPECT_TRUE(file_.Look().ok());
}

TEST(DnsWorkersTest, EachAddressIsAWorker) {
  testing::FakeResolver resolver;
  DnsWorkers dns(kDecodeRole, "decode.baton:7001", {}, resolver);
  EXPECT_EQ(dns.Look().status().code(), absl::StatusCode::kNotFound);
  resolver.hosts["decode.baton"] = std::vector<std::string>{"10.0.0.2", "fe80::1", "10.0.0.1"};
  const auto look = dns.Look();
  ASSERT_TRUE(look.ok());
  EXPECT_THAT(**look, ElementsAre(WorkerAddress{kDecodeRole, "10.0.0.1:7001"},
                                  WorkerAddress{kDecodeRole, "10.0.0.2:7001"},
                                  WorkerAddress{kDecodeRole, "[fe80::1]:7001"}));
  resolver.hosts["decode.baton"] = std::vector<std::string>{"10.0.0.1", "fe80::1", "10.0.0.2"};
  EXPECT_EQ(**dns.Look(), **look) << "name servers rotate their answers";
  resolver.hosts["decode.baton"] = std::vector<std::string>{};
  EXPECT_EQ(ErrorReason(dns.Look().status()), "NAME_NOT_RESOLVED");
}

TEST(DnsWorkersTest, BracketsAreNotPartOfTheHost) {
  testing::FakeResolver resolver;
  resolver.hosts["::1"] = std::vector<std::string>{"::1"};
  EXPECT_THAT(**DnsWorkers(kPrefillRole, "[::1]:7", {}, resolver).Look(),
              ElementsAre(WorkerAddress{kPrefillRole, "[::1]:7"}));
}

TEST(DnsWorkersTest, ALookupIsNotWaitedForAndIsTheOnlyOne) {
  testing::FakeResolver resolver;
  resolver.keep = true;
  resolver.hosts["slow"] = std::vector<std::string>{"10.0.0.1"};
  auto dns = std::make_unique<DnsWorkers>(kDecodeRole, "slow:1", DnsWorkers::Limits(), resolver);
  EXPECT_EQ(dns->period(), absl::Seconds(5));
  for (int i = 0; i < 3; ++i) {
    const auto look = dns->Look();
    ASSERT_TRUE(look.ok());
    EXPECT_FALSE(look->has_value());
    EXPECT_EQ(dns->period(), DnsWorkers::kPollPeriod) << "its answer may come at any time";
  }
  ASSERT_EQ(resolver.lookups.size(), 1u);
  resolver.lookups[0]->Answer(resolver.answers[0]);
  EXPECT_THAT(**dns->Look(), ElementsAre(WorkerAddress{kDecodeRole, "10.0.0.1:1"}));
  EXPECT_EQ(dns->period(), absl::Seconds(5));
  EXPECT_FALSE(dns->Look()->has_value());
  EXPECT_EQ(resolver.lookups.size(), 2u) << "each answer counts once";
  dns.reset();
  resolver.lookups[1]->Answer(resolver.answers[1]);
}

TEST(SystemResolverTest, ASlowNameDelaysNeitherOthersNorTheEnd) {
  struct Shared {
    absl::Notification asked, release;
  };
  const auto shared = std::make_shared<Shared>();
  const auto resolve = [shared](const std::string& host) -> HostAddresses {
    if (host == "slow") {
      shared->asked.Notify();
      shared->release.WaitForNotification();
    }
    return std::vector<std::string>{"10.0.0.1"};
  };
  absl::Mutex mutex;
  Workers told;
  {
    SystemResolver resolver(resolve);
    std::vector<std::unique_ptr<WorkerSource>> sources;
    const DnsWorkers::Limits limits = {absl::Hours(1), absl::Hours(1)};
    sources.push_back(std::make_unique<DnsWorkers>(kPrefillRole, "slow:1", limits, resolver));
    sources.push_back(std::make_unique<DnsWorkers>(kDecodeRole, "quick:2", limits, resolver));
    Discovery::Events events;
    events.on_workers = [&](const Workers& workers) {
      absl::MutexLock lock(&mutex);
      told = workers;
      return absl::OkStatus();
    };
    events.on_failure = [](const WorkerSource&) {};
    events.on_failing = [](int) {};
    Discovery discovery(std::move(sources), Clock::Real(), std::move(events));
    ASSERT_TRUE(discovery.Start().ok());
    EXPECT_TRUE(shared->asked.WaitForNotificationWithTimeout(kPatience));
    const auto any = [&] { return !told.empty(); };
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&any), kPatience));
    EXPECT_THAT(told, ElementsAre(WorkerAddress{kDecodeRole, "10.0.0.1:2"}));
  }
  // The lookup outlives all of them.
  EXPECT_FALSE(shared->release.HasBeenNotified());
  shared->release.Notify();
}

}  // namespace
}  // namespace baton::router
