#include "cli/prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/explain.h"
#include "common/base/exit_code.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class PrefixCommandTest : public ::testing::Test {
 protected:
  PrefixCommandTest() {
    options_.address = cluster_.server().address();
    cluster_.SetReply([](testing::DecodeCall call) {
      internal::v1::DecodeResponse response;
      response.mutable_usage()->set_cached_prompt_tokens(16);
      call.stream->Send(response);
      call.Finish(testing::Ids("x"), internal::v1::DecodeResponse::FINISH_LENGTH);
    });
  }
  int Run(const std::string& command) {
    out_.str("");
    err_.str("");
    return RunPrefix(command, options_, out_, err_);
  }

  testing::FakeCluster cluster_{1, 1};
  PrefixOptions options_;
  std::ostringstream out_, err_;
};

TEST_F(PrefixCommandTest, WarmsListsAndDrops) {
  const std::string path = ::testing::TempDir() + "prefix_command";
  std::ofstream(path) << "a rubric that many prompts begin with";
  options_.file = path;
  options_.tenant = "t";
  ASSERT_EQ(Run("warm"), kExitOk) << err_.str();
  const std::string id = out_.str().substr(0, 16);
  EXPECT_THAT(out_.str(), HasSubstr(id + "  37 tokens, tenant t, priority 50 for 3600000 ms\n"));
  EXPECT_THAT(out_.str(), HasSubstr(cluster_.prefill(0)->address() + "  16 tokens were cached, "));
  ASSERT_EQ(Run("list"), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr(id));
  options_.json = true;
  ASSERT_EQ(Run("list"), kExitOk) << err_.str();
  const Json list = Json::parse(out_.str());
  EXPECT_EQ(list["prefixes"][0]["retention"]["priority"], 50);
  EXPECT_EQ(list["prefixes"][0]["workers"][0]["cached_tokens"], 16);
  options_.json = false;
  options_.id = id;
  ASSERT_EQ(Run("drop"), kExitOk) << err_.str();
  EXPECT_EQ(Run("drop"), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("baton prefix drop: NOT_FOUND"));
  EXPECT_THAT(err_.str(), HasSubstr("UNKNOWN_PREFIX"));
  ASSERT_EQ(Run("list"), kExitOk);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(PrefixCommandTest, ErrorsHaveExitCodes) {
  options_.file = "/nonexistent";
  EXPECT_EQ(Run("warm"), kExitUsage);
  options_.file = "";
  EXPECT_EQ(Run("warm"), kExitUsage) << "no prompt";
  EXPECT_THAT(err_.str(), HasSubstr("EMPTY_PROMPT"));
}

TEST(PrefixFlagsTest, AreParsed) {
  const auto parse = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"baton", "prefix"});
    return ParseCommands(static_cast<int>(arguments.size()), arguments.data());
  };
  ParsedCommands parsed = parse({"warm", "text", "--replicas", "2", "--priority", "80", "--ttl-ms",
                                 "5", "--until-token", "7", "--tenant", "t", "--json"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.chosen, "prefix");
  EXPECT_EQ(parsed.commands.prefix_command, "warm");
  const PrefixOptions& options = parsed.commands.prefix;
  EXPECT_EQ(options.text, "text");
  EXPECT_EQ(options.replicas, 2);
  EXPECT_EQ(options.priority, 80);
  EXPECT_EQ(options.ttl_ms, 5);
  EXPECT_EQ(options.until_token, 7);
  EXPECT_TRUE(options.json);
  parsed = parse({"lint", "a", "b"});
  EXPECT_EQ(parsed.commands.prefix_command, "lint");
  EXPECT_THAT(parsed.commands.prefix.files, ElementsAre("a", "b"));
  EXPECT_TRUE(parse({}).exit_now);
  EXPECT_EQ(parse({"warm", "x", "--priority", "101"}).exit_code, kExitUsage);
  EXPECT_EQ(parse({"drop"}).exit_code, kExitUsage);
}

TEST(CacheMissTextTest, ShowsBothTexts) {
  v1::CacheMiss miss;
  miss.set_cause(v1::CACHE_MISS_CAUSE_CHANGED);
  miss.set_first_different_token(42);
  miss.set_text("Today is\nTuesday");
  miss.set_earlier_text("Today is\nMonday");
  miss.set_lost_tokens(1873);
  miss.set_lost_ms(214.04);
  miss.set_earlier_request_id("r");
  EXPECT_EQ(
      CacheMissText(miss),
      "  cache: differs from an earlier prompt at token 42; 1873 tokens lost, about 214.0 ms\n"
      "    now:     \"Today is\\nTuesday\"\n"
      "    earlier: \"Today is\\nMonday\"\n"
      "    earlier request: r\n");
  miss.set_cause(v1::CACHE_MISS_CAUSE_EVICTED);
  EXPECT_THAT(CacheMissText(miss), HasSubstr("does not have what an earlier prompt left"));
}

}  // namespace
}  // namespace baton::cli
