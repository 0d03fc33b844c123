#include "cli/admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/exit_code.h"
#include "tests/router/generate_client.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class AdminCommandTest : public ::testing::Test {
 protected:
  int Run(const std::string& command) {
    out_.str("");
    err_.str("");
    return RunAdmin(command, options_, out_, err_);
  }
  Json RunJson(const std::string& command) {
    options_.json = true;
    EXPECT_EQ(Run(command), kExitOk) << err_.str();
    options_.json = false;
    const std::string line = out_.str();
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    return Json::parse(line);
  }

  testing::FakeCluster cluster_;
  AdminOptions options_ = [this] {
    AdminOptions options;
    options.address = cluster_.server().address();
    return options;
  }();
  const std::string decode_ = cluster_.decode(0)->address();
  std::ostringstream out_, err_;
};

TEST_F(AdminCommandTest, ListsWorkersAndLoads) {
  ASSERT_EQ(Run("workers"), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("decode   " + decode_ + " "));
  EXPECT_THAT(out_.str(), HasSubstr(" ready "));
  EXPECT_EQ(RunJson("workers")["workers"].size(), 2u);
  ASSERT_EQ(Run("loads"), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("decode   " + decode_ + " "));
  EXPECT_THAT(out_.str(), HasSubstr("\nrouter: 0 of "));
  const Json loads = RunJson("loads");
  EXPECT_EQ(loads["workers"].size(), 2u);
  EXPECT_EQ(loads["router"]["requests"], 0);
}

TEST_F(AdminCommandTest, DrainsAndUndrains) {
  cluster_.decode(0)->TellLoad(/*running=*/2, /*queued=*/0, 0);
  options_.worker = decode_;
  ASSERT_EQ(Run("drain"), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "decode worker " + decode_ + " is draining: 2 running, 0 queued\n");
  EXPECT_EQ(RunJson("drain")["worker"]["state"], "WORKER_STATE_DRAINING");
  options_.wait = true;
  options_.timeout_ms = 50;
  EXPECT_EQ(Run("drain"), kExitDeadline);
  EXPECT_THAT(err_.str(), HasSubstr("baton drain: DEADLINE_EXCEEDED"));
  options_.timeout_ms = 60'000;
  cluster_.decode(0)->TellLoad(0, 0, 0);
  ASSERT_EQ(Run("drain"), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("is drained: 0 running"));
  ASSERT_EQ(Run("undrain"), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("is ready"));
  options_.worker = "10.0.0.1:7";
  EXPECT_EQ(Run("undrain"), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("baton undrain: NOT_FOUND: "));
  EXPECT_THAT(err_.str(), HasSubstr("[UNKNOWN_WORKER]"));
}

TEST_F(AdminCommandTest, FlushesAndSaysWhichWorkersItDidNotReach) {
  ASSERT_EQ(Run("flush-cache"), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("decode worker " + decode_ + ": 7 blocks dropped\n"));
  EXPECT_EQ(RunJson("flush-cache")["workers"].size(), 2u);
  cluster_.decode(0).reset();
  EXPECT_EQ(Run("flush-cache"), kExitUnavailable);
  EXPECT_THAT(out_.str(), HasSubstr(": 7 blocks dropped\n")) << "by the other one";
  EXPECT_THAT(err_.str(), HasSubstr("baton flush-cache: UNAVAILABLE"));
}

TEST_F(AdminCommandTest, CancelsByIdAndTenant) {
  v1::GenerateRequest request = testing::Prompt("hello");
  request.set_request_id("mine");
  request.set_tenant("me");
  testing::Call call(cluster_, request);
  testing::DecodeCall decode = cluster_.decode(0)->AwaitDecode();
  options_.request_id = "mine";
  EXPECT_EQ(Run("cancel"), kExitFailure) << "of another tenant";
  EXPECT_THAT(err_.str(), HasSubstr("[UNKNOWN_REQUEST]"));
  options_.tenant = "me";
  ASSERT_EQ(Run("cancel"), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "1 request cancelled\n");
  EXPECT_TRUE(decode.stream->AwaitCancelled());
  EXPECT_EQ(call.End().code(), absl::StatusCode::kCancelled);
  options_.address = "127.0.0.1:1";
  EXPECT_EQ(Run("cancel"), kExitUnavailable);
}

}  // namespace
}  // namespace baton::cli
