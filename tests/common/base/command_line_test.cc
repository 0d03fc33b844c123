#include "common/base/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "common/base/exit_code.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

TEST(CloseNamesTest, AFewSlips) {
  const std::vector<std::string> known = {"--max-tokens", "--min-tokens", "--temperature",
                                          "--top-p",      "--top-k",      "--tls"};
  EXPECT_THAT(CloseNames("--max-token", known), ElementsAre("--max-tokens"));
  EXPECT_THAT(CloseNames("--MAX_tokens", known), ElementsAre("--max-tokens"));
  EXPECT_THAT(CloseNames("-temprature", known), ElementsAre("--temperature"));
  EXPECT_THAT(CloseNames("--Tempreature", known), ElementsAre("--temperature"));
  EXPECT_THAT(CloseNames("--tpo-p", known), ElementsAre("--top-p")) << "swapped letters";
  EXPECT_THAT(CloseNames("--temp", known), ElementsAre("--temperature")) << "a beginning";
  EXPECT_THAT(CloseNames("--t", known), IsEmpty()) << "of many";
  EXPECT_THAT(CloseNames("--colour", known), IsEmpty());
  EXPECT_THAT(CloseNames("", known), IsEmpty());
  EXPECT_THAT(CloseNames("--", known), IsEmpty());
  EXPECT_THAT(CloseNames(std::string(1 << 20, 'x'), known), IsEmpty());
  EXPECT_THAT(CloseNames("a", {"b"}), IsEmpty());
}

TEST(CloseNamesTest, TheLikeliestThree) {
  EXPECT_THAT(CloseNames("worker", {"workers1", "workers", "worker2", "workez", "works"}),
              ElementsAre("worker2", "workers", "workers1"));
}

class ParseErrorTest : public ::testing::Test {
 protected:
  ParseErrorTest() {
    app_.set_version_flag("--version", "v1");
    app_.require_subcommand(1);
    CLI::App* generate = app_.add_subcommand("generate", "");
    generate->add_option("text", text_, "")->required();
    generate->add_option("--max-tokens", max_tokens_, "");
    CLI::App* bench = app_.add_subcommand("bench", "");
    bench->require_subcommand(1);
    bench->add_subcommand("serve", "")->add_option("--num-prompts", max_tokens_, "");
  }

  // What is printed on stderr.
  std::string Parse(std::vector<const char*> arguments, int exit_code = kExitUsage) {
    arguments.insert(arguments.begin(), "program");
    CaptureStderr();
    CaptureStdout();
    try {
      app_.parse(static_cast<int>(arguments.size()), arguments.data());
      ADD_FAILURE() << "parsed";
    } catch (const CLI::ParseError& error) {
      EXPECT_EQ(ReportParseError(app_, error), exit_code);
    }
    out_ = GetCapturedStdout();
    return GetCapturedStderr();
  }

  CLI::App app_;
  std::string text_, out_;
  int max_tokens_ = 0;
};

TEST_F(ParseErrorTest, UnknownCommands) {
  EXPECT_THAT(Parse({"genrate", "hi"}),
              StartsWith("unknown command \"genrate\"; did you mean generate?\n"));
  EXPECT_THAT(Parse({"bench", "srve", "--num-prompts", "3"}),
              StartsWith("unknown command \"srve\"; did you mean serve?\n"));
  EXPECT_THAT(Parse({"fly"}),
              StartsWith("unknown command \"fly\"; expected one of generate, bench\n"));
  EXPECT_THAT(Parse({}), HasSubstr("subcommand is required"));
}

TEST_F(ParseErrorTest, UnknownFlags) {
  EXPECT_THAT(Parse({"generate", "--max-token", "3", "hi"}),
              StartsWith("unknown flag --max-token; did you mean --max-tokens?\n"));
  EXPECT_THAT(Parse({"generate", "hi", "--max_tokens=3", "--colour"}),
              StartsWith("unknown flag --max_tokens; did you mean --max-tokens?\n"
                         "unknown flag --colour\n"));
  // That a text is missing may be because --max-token takes a value, and is not said.
  EXPECT_THAT(Parse({"generate", "--max-token=3"}), Not(HasSubstr("required")));
  EXPECT_THAT(Parse({"bench", "serve", "--num-prompt", "3"}),
              StartsWith("unknown flag --num-prompt; did you mean --num-prompts?\n"));
  EXPECT_THAT(Parse({"--max-tokens", "3", "generate", "hi"}),
              StartsWith("unknown flag --max-tokens before the command: "));
  EXPECT_THAT(Parse({"--versio"}), StartsWith("unknown flag --versio; did you mean --version?\n"));
}

TEST_F(ParseErrorTest, OtherErrorsStay) {
  EXPECT_THAT(Parse({"generate", "hi", "there"}), StartsWith("unexpected argument \"there\"\n"));
  EXPECT_THAT(Parse({"generate", "hi", "-3"}), StartsWith("unexpected argument \"-3\"\n"));
  EXPECT_THAT(Parse({"generate"}), HasSubstr("text is required"));
  EXPECT_THAT(Parse({"generate", "hi", "--max-tokens", "x"}), HasSubstr("--max-tokens"));
  EXPECT_EQ(Parse({"--version"}, kExitOk), "");
  EXPECT_EQ(out_, "v1\n");
  EXPECT_EQ(Parse({"generate", "--colour", "--help"}, kExitOk), "");
}

TEST_F(ParseErrorTest, WordsOfAnyBytes) {
  const std::string shown = Parse({("--\xff" + std::string(10'000, 'x')).c_str()});
  EXPECT_THAT(shown, StartsWith("unknown flag --?xxx"));
  EXPECT_LT(shown.size(), 200u);
}

}  // namespace
}  // namespace baton
