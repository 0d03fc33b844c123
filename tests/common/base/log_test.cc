#include "common/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/time/time.h"

namespace baton {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// A pipe in the place of stderr.
class LogTest : public ::testing::Test {
 protected:
  LogTest() : saved_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe(ends_), 0);
    EXPECT_EQ(dup2(ends_[1], STDERR_FILENO), STDERR_FILENO);
    close(ends_[1]);
    BATON_LOG(Info) << "what an earlier test lost is told here";
    Drain();
  }
  ~LogTest() override {
    SetLogFormat(LogFormat::kText);
    SetLogComponent("");
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    if (ends_[0] >= 0) close(ends_[0]);
  }
  // What is in the pipe.
  std::string Drain() {
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = read(ends_[0], buffer, sizeof(buffer))) > 0;) all.append(buffer, n);
    return all;
  }
  void CloseReader() {
    close(ends_[0]);
    ends_[0] = -1;
  }

 private:
  const int saved_;
  int ends_[2];
};

TEST_F(LogTest, ALineHasItsLevelAndItsText) {
  BATON_LOG(Warning) << "what " << 7;
  const std::string line = Drain();
  EXPECT_THAT(line, HasSubstr(" warning "));
  EXPECT_THAT(line, EndsWith("what 7\n"));
}

TEST_F(LogTest, AMessageCannotWriteALineOrAnEscapeSequence) {
  BATON_LOG(Warning) << "model \"a\nb\x1b[2J\x7f\" \xc3\xa9";
  EXPECT_THAT(Drain(), EndsWith("model \"a\\x0ab\\x1b[2J\\x7f\" \xc3\xa9\n"));
}

TEST_F(LogTest, AFullPipeBlocksNobodyAndIsTold) {
  const std::string text(1000, 'x');
  for (int i = 0; i < 1000; ++i) BATON_LOG(Info) << text;  // no pipe takes a megabyte
  EXPECT_THAT(Drain(), EndsWith("x\n"));
  BATON_LOG(Info) << "again";
  const std::string line = Drain();
  EXPECT_THAT(line, HasSubstr("again\n("));
  EXPECT_THAT(line, HasSubstr(" lines before this one were lost)\n"));
  BATON_LOG(Info) << "well";
  EXPECT_THAT(Drain(), EndsWith("well\n"));
}

TEST_F(LogTest, AVeryLongLineIsClipped) {
  BATON_LOG(Info) << std::string(1 << 20, 'y');
  const std::string line = Drain();
  EXPECT_EQ(line.size(), 4096u);
  EXPECT_THAT(line, EndsWith("y\n"));
}

TEST_F(LogTest, ALineAboutARequestNamesItAndItsTrace) {
  const TraceContext trace = {0xab, 0xcd, 1, 1, ""};
  BATON_REQUEST_LOG(Info, "r-1", trace) << "moves";
  BATON_REQUEST_LOG(Info, "r\n2") << "moves";
  const std::string lines = Drain();
  EXPECT_THAT(lines, HasSubstr("request r-1 (trace 00000000000000ab00000000000000cd): moves\n"));
  EXPECT_THAT(lines, EndsWith(" request r\\x0a2: moves\n"));
}

TEST_F(LogTest, JsonLinesHaveTheirMembers) {
  SetLogFormat(LogFormat::kJson);
  BATON_LOG(Warning) << "what " << 7;
  const std::string line = Drain();
  EXPECT_THAT(line, EndsWith("}\n"));
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["severity"], "warning");
  EXPECT_EQ(json["message"], "what 7");
  EXPECT_EQ(json.size(), 3u) << line;
  absl::Time time;
  std::string error;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, json["time"].get<std::string>(), &time, &error));
  SetLogComponent("decode-0");
  BATON_REQUEST_LOG(Info, "r-1", TraceContext{0xab, 0xcd, 1, 1, ""}) << "moves";
  const auto of_request = nlohmann::json::parse(Drain());
  EXPECT_EQ(of_request["source"], "decode-0");
  EXPECT_EQ(of_request["request_id"], "r-1");
  EXPECT_EQ(of_request["trace_id"], "00000000000000ab00000000000000cd");
}

TEST_F(LogTest, AJsonLineIsValidForAnyBytes) {
  SetLogFormat(LogFormat::kJson);
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  BATON_REQUEST_LOG(Info, all) << all << "\r\n\xed\xa0\x80\xc3";
  const std::string line = Drain();
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);  // throws for what is not JSON
  EXPECT_THAT(json["message"].get<std::string>(), HasSubstr("~\x7f??"));
}

TEST_F(LogTest, AVeryLongJsonLineIsValid) {
  SetLogFormat(LogFormat::kJson);
  SetLogComponent(std::string(5000, '\x01'));
  BATON_REQUEST_LOG(Info, std::string(5000, '"')) << std::string(1 << 20, '\x02');
  const std::string line = Drain();
  EXPECT_LE(line.size(), 4096u);
  EXPECT_THAT(nlohmann::json::parse(line)["message"].get<std::string>(), EndsWith("\x02"));
}

TEST_F(LogTest, AJsonLineCountsTheLinesThatWereLost) {
  SetLogFormat(LogFormat::kJson);
  const std::string text(1000, 'x');
  for (int i = 0; i < 1000; ++i) BATON_LOG(Info) << text;
  Drain();
  BATON_LOG(Info) << "again";
  EXPECT_GT(nlohmann::json::parse(Drain())["lost_lines"], 0);
}

TEST_F(LogTest, AClosedPipeIsNoReasonToEnd) {
  const auto before = signal(SIGPIPE, SIG_IGN);  // as all processes of ours do
  CloseReader();
  BATON_LOG(Info) << "to nobody";
  signal(SIGPIPE, before);
}

}  // namespace
}  // namespace baton
