#include "cli/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "common/base/exit_code.h"
#include "common/base/rpc/server.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;

class HealthCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = RpcServer::Start({}, {}, {"a.Service"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    options_.address = server_->address();
  }
  int Run(const std::string& service) {
    options_.service = service;
    out_.str("");
    err_.str("");
    return RunHealth(options_, out_, err_);
  }

  std::unique_ptr<RpcServer> server_;
  HealthOptions options_;
  std::ostringstream out_, err_;
};

TEST_F(HealthCommandTest, LivenessIsNotReadiness) {
  EXPECT_EQ(Run(""), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "serving\n");
  EXPECT_EQ(Run("a.Service"), kExitFailure);
  EXPECT_EQ(out_.str(), "not serving\n");
  server_->SetServing(true);
  EXPECT_EQ(Run("a.Service"), kExitOk);
}

TEST_F(HealthCommandTest, ErrorsHaveTheirExitCodes) {
  EXPECT_EQ(Run("another.Service"), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("baton health: NOT_FOUND"));
  server_.reset();
  EXPECT_EQ(Run(""), kExitUnavailable);
}

}  // namespace
}  // namespace baton::cli
