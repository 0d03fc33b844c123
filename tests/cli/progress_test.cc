#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/router/fake_clock.h"

namespace baton::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(ProgressTest, WritesAtMostTenTimesASecondAndClearsItsLine) {
  testing::FakeClock clock;
  std::ostringstream out;
  {
    Progress progress(out, true, "requests", 10, clock);
    clock.Advance(absl::Seconds(1));
    progress.Advance(2, "1 failed");
    EXPECT_THAT(out.str(), HasSubstr("\r 20 % [======                        ] 2/10 requests, "
                                     "2.0/s, 4 s left, 1 failed"));
    out.str("");
    progress.Advance(1);
    EXPECT_EQ(out.str(), "");
    clock.Advance(absl::Milliseconds(100));
    progress.Advance(7);
    EXPECT_THAT(out.str(), HasSubstr("100 % [==============================] 10/10"));
  }
  EXPECT_THAT(out.str(), EndsWith("\r\x1b[K"));
}

TEST(ProgressTest, IsSilentWithoutATerminal) {
  std::ostringstream out;
  { Progress(out, false, "requests", 10).Advance(10); }
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace baton::cli
