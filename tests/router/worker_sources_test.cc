#include "router/worker_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "common/base/error.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr v1::WorkerRole kP = v1::WORKER_ROLE_PREFILL, kD = v1::WORKER_ROLE_DECODE;

std::string ErrorOf(absl::string_view text) {
  return std::string(ParseWorkers(text).status().message());
}

TEST(WorkersFileTest, LinesCommentsAndSpaces) {
  const auto workers = ParseWorkers(
      "# the cluster\n"
      "prefill 10.0.0.1:7000\r\n"
      "\n"
      "\t decode   [fe80::1]:7001  # new\n"
      "decode host-2.example:65535");
  ASSERT_TRUE(workers.ok()) << workers.status();
  EXPECT_THAT(*workers,
              ElementsAre(WorkerAddress{kP, "10.0.0.1:7000"}, WorkerAddress{kD, "[fe80::1]:7001"},
                          WorkerAddress{kD, "host-2.example:65535"}));
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
  EXPECT_THAT(**look, ElementsAre(WorkerAddress{kD, "a:1"}, WorkerAddress{kD, "c:1"}));
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

class FakeResolver final : public Resolver {
 public:
  absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) override {
    const auto found = hosts.find(host);
    if (found == hosts.end()) return absl::NotFoundError("no such name");
    return found->second;
  }
  std::map<std::string, absl::StatusOr<std::vector<std::string>>> hosts;
};

TEST(DnsWorkersTest, EachAddressIsAWorker) {
  FakeResolver resolver;
  DnsWorkers dns(kD, "decode.baton:7001", {}, resolver);
  EXPECT_EQ(dns.Look().status().code(), absl::StatusCode::kNotFound);
  resolver.hosts["decode.baton"] = std::vector<std::string>{"10.0.0.2", "fe80::1", "10.0.0.1"};
  const auto look = dns.Look();
  ASSERT_TRUE(look.ok());
  EXPECT_THAT(**look,
              ElementsAre(WorkerAddress{kD, "10.0.0.1:7001"}, WorkerAddress{kD, "10.0.0.2:7001"},
                          WorkerAddress{kD, "[fe80::1]:7001"}));
  resolver.hosts["decode.baton"] = std::vector<std::string>{"10.0.0.1", "fe80::1", "10.0.0.2"};
  EXPECT_EQ(**dns.Look(), **look) << "name servers rotate their answers";
  resolver.hosts["decode.baton"] = std::vector<std::string>{};
  EXPECT_EQ(ErrorReason(dns.Look().status()), "NAME_NOT_RESOLVED");
}

TEST(DnsWorkersTest, BracketsAreNotPartOfTheHost) {
  FakeResolver resolver;
  resolver.hosts["::1"] = std::vector<std::string>{"::1"};
  EXPECT_THAT(**DnsWorkers(kP, "[::1]:7", {}, resolver).Look(),
              ElementsAre(WorkerAddress{kP, "[::1]:7"}));
}

TEST(SystemResolverTest, NumbersAreTheirOwnAndNamesThatCannotBeDoNotResolve) {
  SystemResolver resolver;
  EXPECT_THAT(*resolver.Resolve("127.0.0.1"), ElementsAre("127.0.0.1"));
  // No name server is asked for it: RFC 6761 reserves it, and it has an empty label.
  const auto none = resolver.Resolve("no..such.name.invalid");
  EXPECT_EQ(ErrorReason(none.status()), "NAME_NOT_RESOLVED");
}

}  // namespace
}  // namespace baton::router
