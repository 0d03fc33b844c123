#include "cli/line_reader.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "common/base/check.h"

namespace baton::cli {
namespace {

// What a script sends.
class LineReaderTest : public ::testing::Test {
 protected:
  LineReaderTest() {
    BATON_CHECK_EQ(pipe(pipe_), 0);
    lines_ = MakePipeReader(pipe_[0], signals_);
  }
  ~LineReaderTest() override {
    Close();
    close(pipe_[0]);
  }
  void Send(const std::string& text) {
    BATON_CHECK_EQ(write(pipe_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void Close() {
    if (pipe_[1] >= 0) close(pipe_[1]);
    pipe_[1] = -1;
  }

  const ShutdownSignal signals_{BrokenPipe::kDefault};
  int pipe_[2];
  std::unique_ptr<LineReader> lines_;
};

TEST_F(LineReaderTest, LinesOfAPipe) {
  Send("one\n\ntwo\nno newline");
  Close();
  for (const char* expected : {"one", "", "two", "no newline"}) {
    const InputLine line = lines_->Read("unused");
    EXPECT_EQ(line.kind, InputLine::Kind::kText);
    EXPECT_EQ(line.text, expected);
  }
  EXPECT_EQ(lines_->Read("").kind, InputLine::Kind::kEnd);
  EXPECT_EQ(lines_->Read("").kind, InputLine::Kind::kEnd);
}

TEST_F(LineReaderTest, ASignalEndsTheWait) {
  kill(getpid(), SIGTERM);
  EXPECT_EQ(lines_->Read("").kind, InputLine::Kind::kSignal);
  Send("more\n");
  EXPECT_EQ(lines_->Read("").text, "more");
}

TEST_F(LineReaderTest, Entries) {
  const struct {
    const char* sent;
    const char* text;
    bool literal;
  } cases[] = {
      {"hi\n", "hi", false},
      {"one\\\ntwo\\\nthree\n", "one\ntwo\nthree", false},
      {"\"\"\"\n/one\n\n two\n\"\"\"\n", "/one\n\n two", true},
      {"\"\"\"one\ntwo\"\"\"\n", "one\ntwo", true},
      {"\"\"\"/one\"\"\"\n", "/one", true},
      {"\"\"\"\"\"\"\n", "", true},
      {"a \"\"\" b\n", "a \"\"\" b", false},
  };
  for (const auto& [sent, text, literal] : cases) {
    Send(sent);
    const Entry entry = ReadEntry(*lines_);
    EXPECT_EQ(entry.line.kind, InputLine::Kind::kText);
    EXPECT_EQ(entry.line.text, text);
    EXPECT_EQ(entry.literal, literal) << sent;
  }
  Send("\"\"\"\nno end");
  Close();
  EXPECT_EQ(ReadEntry(*lines_).line.text, "no end");
  EXPECT_EQ(ReadEntry(*lines_).line.kind, InputLine::Kind::kEnd);
}

}  // namespace
}  // namespace baton::cli
