#include "cli/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::baton::testing::FakeCluster;
using nlohmann::json;
using ::testing::HasSubstr;

TEST(ScoreLinesTest, ALineIsAStringOrAnObject) {
  EXPECT_EQ(ParseItemLine(R"("a\u0000b")")->text, std::string("a\0b", 3));
  const auto object = ParseItemLine(R"({"text": "t", "id": {"n": [1]}, "other": 2})");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(object->text, "t");
  EXPECT_EQ(object->id, R"({"n":[1]})");
  EXPECT_EQ(ParseItemLine(R"({"text": ""})")->id, "");
  for (const char* bad : {"", "plain", "3", "[\"a\"]", "{\"id\": 1}", "{\"text\": 1}", "\"a",
                          "\"\xff\"", "\"\\ud800\""}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseItemLine(bad).status())) << bad;
  }
}

TEST(ScoreLinesTest, AResultIsAnObject) {
  client::ItemScore item;
  item.id = 7;
  item.labels = {{-0.25, {1}, {-0.25f}}, {-1.5, {2, 3}, {-1, -0.5f}}};
  item.probability = 0.75;
  item.prompt_tokens = 9;
  item.cached_prompt_tokens = 4;
  const json scored = json::parse(ToJson(item, R"("mail-7")", {" yes", " no"}));
  EXPECT_EQ(scored, json::parse(R"({"index": 7, "id": "mail-7",
      "logprobs": {" yes": -0.25, " no": -1.5}, "probability": 0.75, "prompt_tokens": 9,
      "cached_prompt_tokens": 4})"));
  client::ItemScore failed;
  failed.status = InvalidField("PROMPT_TOO_LONG", "items", "too long");
  const json error = json::parse(ToJson(failed, "", {" yes"}));
  EXPECT_EQ(error, json::parse(R"({"index": 0, "error": {"code": "INVALID_ARGUMENT",
      "reason": "PROMPT_TOO_LONG", "message": "items: too long"}})"));
}

class ScoreCommandTest : public ::testing::Test {
 protected:
  int Run(const std::string& lines) {
    std::istringstream in(lines);
    out_.str("");
    err_.str("");
    return RunScore(options_, in, out_, err_);
  }
  std::vector<json> Lines() {
    std::vector<json> lines;
    std::istringstream text(out_.str());
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }

  // Before the threads of the cluster, as in main().
  const ShutdownSignal signals_{BrokenPipe::kDefault};
  FakeCluster cluster_;
  ScoreOptions options_ = [this] {
    ScoreOptions options;
    options.address = cluster_.server().address();
    options.items_file = "-";
    options.request.labels = {" yes", " no"};
    return options;
  }();
  std::ostringstream out_, err_;
};

TEST_F(ScoreCommandTest, PrintsALineForEachItem) {
  options_.prefix_file = ::testing::TempDir() + "/rubric.txt";
  std::ofstream(options_.prefix_file) << "rubric: ";
  EXPECT_EQ(Run("\"a\"\n\n{\"text\": \"b\", \"id\": 5}\n"), kExitOk) << err_.str();
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["index"], 0);
  EXPECT_FALSE(lines[0].contains("id"));
  EXPECT_EQ(lines[0]["prompt_tokens"], 9);
  EXPECT_EQ(lines[1]["index"], 1);
  EXPECT_EQ(lines[1]["id"], 5);
  EXPECT_EQ(lines[1]["logprobs"][" no"], -3);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(ScoreCommandTest, ABadItemHasItsLineAndTheOthersGoOn) {
  EXPECT_EQ(Run("\"a\"\n\"\"\n\"" + std::string(200, 'x') + "\"\n\"b\"\n"), kExitFailure);
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].contains("logprobs"));
  EXPECT_EQ(lines[1]["error"]["reason"], "EMPTY_PROMPT");
  EXPECT_EQ(lines[2]["error"]["reason"], "PROMPT_TOO_LONG");
  EXPECT_TRUE(lines[3].contains("logprobs"));
  EXPECT_THAT(err_.str(), HasSubstr("2 of 4 items have an error"));
}

TEST_F(ScoreCommandTest, WhatConcernsAllItemsIsOnStderr) {
  EXPECT_NE(Run("\"a\"\nno JSON\n"), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("line 2 of the items"));
  options_.request.labels = {" no", " no"};
  EXPECT_NE(Run("\"a\"\n"), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("DUPLICATE_LABEL"));
  EXPECT_EQ(out_.str(), "");
  options_.prefix_file = "/nonexistent";
  EXPECT_NE(Run("\"a\"\n"), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("/nonexistent: cannot be opened"));
}

}  // namespace
}  // namespace baton::cli
