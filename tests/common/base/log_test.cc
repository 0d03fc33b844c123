#include "common/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

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

TEST_F(LogTest, AClosedPipeIsNoReasonToEnd) {
  const auto before = signal(SIGPIPE, SIG_IGN);  // as all processes of ours do
  CloseReader();
  BATON_LOG(Info) << "to nobody";
  signal(SIGPIPE, before);
}

}  // namespace
}  // namespace baton
