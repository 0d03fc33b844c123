#include "cli/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SvgPlotTest, TicksAreRoundAndReachTheTop) {
  EXPECT_THAT(Ticks(5), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Ticks(0.9), ElementsAre(0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0));
  EXPECT_THAT(Ticks(101), ElementsAre(0, 25, 50, 75, 100, 125));
  EXPECT_EQ(Ticks(0).back(), 1);
}

TEST(SvgPlotTest, LeavesOutWhatIsNoNumber) {
  const std::string svg = RenderSvg(
      {{"a < b", "x", "y", {{"line", {{1, 2}, {2, NAN}, {3, 4}}}, {"none", {{1, NAN}}}}}});
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  size_t paths = 0;
  for (size_t at = 0; (at = svg.find("<path", at)) != std::string::npos; ++at) ++paths;
  EXPECT_EQ(paths, 1u);
}

}  // namespace
}  // namespace baton::cli
