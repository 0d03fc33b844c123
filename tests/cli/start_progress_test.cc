#include "cli/start_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/router/fake_clock.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What a terminal of that many rows shows of an output that moves its cursor only as StartProgress
// does: a line feed at the last row scrolls.
class Terminal {
 public:
  explicit Terminal(int rows) : lines_(rows) {}

  void Write(const std::string& output) {
    for (size_t i = 0; i < output.size(); ++i) {
      const char c = output[i];
      if (c == '\n') {
        if (++row_ == static_cast<int>(lines_.size())) {
          scrolled_.push_back(lines_.front());
          lines_.erase(lines_.begin());
          lines_.emplace_back();
          --row_;
        }
        column_ = 0;
      } else if (c == '\r') {
        column_ = 0;
      } else if (c == '\033') {
        ASSERT_EQ(output[++i], '[');
        int number = 0;
        while (output[++i] >= '0' && output[i] <= '9') number = number * 10 + output[i] - '0';
        if (output[i] == 'A') {
          ASSERT_GE(row_, number) << "above the screen";
          row_ -= number;
        } else {
          ASSERT_EQ(output[i], 'J');
          ASSERT_EQ(column_, 0u);
          for (size_t r = row_; r < lines_.size(); ++r) lines_[r].clear();
        }
      } else {
        lines_[row_].resize(column_);
        lines_[row_] += c;
        ++column_;
      }
    }
  }

  // All lines up to the cursor's.
  std::vector<std::string> Lines() const {
    std::vector<std::string> all = scrolled_;
    all.insert(all.end(), lines_.begin(), lines_.begin() + row_);
    return all;
  }

 private:
  std::vector<std::string> lines_, scrolled_;
  int row_ = 0;
  size_t column_ = 0;
};

class OnTerminalTest : public ::testing::Test {
 protected:
  std::vector<std::string> Lines(int rows = 24) const {
    Terminal terminal(rows);
    terminal.Write(out_.str());
    return terminal.Lines();
  }

  std::ostringstream out_;
};

TEST_F(OnTerminalTest, EachWorkerHasALineBelowTheLog) {
  StartProgress progress(out_, ScreenSize{80, 24});
  progress.Begin({"prefill-0", "decode-0"});
  EXPECT_THAT(Lines(), ElementsAre("prefill-0    starts", "decode-0     starts"));
  progress.Line("decode-0", "info decode loading weights 50 %");
  progress.Line("prefill-0", "info prefill loading weights 0 %");
  progress.Line("prefill-0", "info prefill KV is sent over gRPC");
  EXPECT_THAT(Lines(), ElementsAre("[prefill-0] info prefill KV is sent over gRPC",
                                   "prefill-0    loading weights [                    ]   0 %",
                                   "decode-0     loading weights [==========          ]  50 %"));
  progress.Line("decode-0", "info decode loading weights 100 %");
  progress.Line("prefill-0", "info prefill worker w serves m on 127.0.0.1:1");
  EXPECT_THAT(Lines(), ElementsAre("[prefill-0] info prefill KV is sent over gRPC",
                                   "[prefill-0] info prefill worker w serves m on 127.0.0.1:1",
                                   "decode-0     weights loaded"));
  progress.Line("prefill-0", "info prefill loading weights 10 %");  // no worker that starts
  progress.Print("a message");
  progress.End();
  progress.Line("decode-0", "info decode stopped");
  EXPECT_THAT(Lines(), ElementsAre("[prefill-0] info prefill KV is sent over gRPC",
                                   "[prefill-0] info prefill worker w serves m on 127.0.0.1:1",
                                   "[prefill-0] info prefill loading weights 10 %", "a message",
                                   "[decode-0] info decode stopped"));
}

TEST_F(OnTerminalTest, TheBlockFitsTheScreen) {
  StartProgress progress(out_, ScreenSize{20, 5});
  std::vector<std::string> workers;
  for (int i = 0; i < 64; ++i) workers.push_back(absl::StrCat("decode-", i));
  progress.Begin(workers);
  for (int percent = 0; percent <= 90; percent += 10) {
    for (const std::string& worker : workers) {
      progress.Line(worker, absl::StrCat("loading weights ", percent, " %"));
    }
    progress.Print(absl::StrCat("at ", percent));
  }
  EXPECT_THAT(Lines(5), ElementsAre("at 0", "at 10", "at 20", "at 30", "at 40", "at 50", "at 60",
                                    "at 70", "at 80", "at 90", "decode-0     loadin",
                                    "decode-1     loadin", "decode-2     loadin", "and 61 more"));
  progress.End();
  EXPECT_EQ(Lines(5).back(), "at 90");
}

TEST(StartProgressInALogTest, ALineAWorkerAndOthersOnlyIfItTakesLong) {
  testing::FakeClock clock;
  std::ostringstream out;
  StartProgress progress(out, std::nullopt, clock);
  progress.Begin({"prefill-0", "decode-0"});
  for (int percent = 0; percent <= 100; percent += 10) {
    for (const char* worker : {"prefill-0", "decode-0"}) {
      progress.Line(worker, absl::StrCat("loading weights ", percent, " %"));
    }
  }
  progress.Line("decode-0", "decode worker w serves m");
  EXPECT_EQ(out.str(),
            "[prefill-0] loading weights 0 %\n[decode-0] loading weights 0 %\n"
            "[decode-0] decode worker w serves m\n");
  out.str("");
  clock.Advance(absl::Seconds(10));
  progress.Line("prefill-0", "loading weights 30 %");
  progress.Line("prefill-0", "loading weights 40 %");
  progress.End();
  EXPECT_EQ(out.str(), "[prefill-0] loading weights 30 %\n");
}

TEST(StartProgressInALogTest, LinesOfAnyText) {
  std::ostringstream out;
  StartProgress progress(out, ScreenSize{80, 24});
  progress.Begin({"decode-0"});
  for (const char* line : {"loading weights", "loading weights x %", "loading weights -5 %",
                           "loading weights 99999999999 %", ""}) {
    progress.Line("decode-0", line);
  }
  EXPECT_THAT(out.str(), HasSubstr("[decode-0] loading weights x %\n"));
  EXPECT_THAT(out.str(), HasSubstr("[decode-0] \n"));
  EXPECT_THAT(out.str(), Not(HasSubstr("-5")));
}

}  // namespace
}  // namespace baton::cli
