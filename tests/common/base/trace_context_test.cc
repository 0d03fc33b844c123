#include "common/base/trace_context.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr char kGood[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, AGoodTraceparentIsReadAndWrittenAlike) {
  const TraceContext context = ParseTraceContext(kGood, "vendor=a,other@x=b c");
  EXPECT_TRUE(context.valid());
  EXPECT_TRUE(context.sampled());
  EXPECT_EQ(context.trace_high, 0x0af7651916cd43ddu);
  EXPECT_EQ(context.trace_low, 0x8448eb211c80319cu);
  EXPECT_EQ(context.span_id, 0xb7ad6b7169203331u);
  EXPECT_EQ(context.state, "vendor=a,other@x=b c");
  EXPECT_EQ(Traceparent(context), kGood);
  EXPECT_EQ(TraceIdText(context), "0af7651916cd43dd8448eb211c80319c");
}

TEST(TraceContext, FlagsAndVersions) {
  const std::string head(kGood, 53);
  struct Case {
    std::string text;
    int flags;
  };
  const Case cases[] = {
      {head + "00", 0},
      {head + "02", 2},
      {head + "03", 3},
      {head + "ff", 3},  // bits without a meaning are not passed on
      {"01" + head.substr(2) + "01", 1},
      {"cc" + head.substr(2) + "01-what-comes-later", 1},
      {"fe" + head.substr(2) + "00-", 0},
  };
  for (const Case& c : cases) {
    const TraceContext context = ParseTraceContext(c.text, "");
    EXPECT_TRUE(context.valid()) << c.text;
    EXPECT_EQ(context.flags, c.flags) << c.text;
    EXPECT_EQ(Traceparent(context), absl::StrCat(head, "0", c.flags)) << "always version 00";
  }
}

TEST(TraceContext, AMalformedTraceparentIsNone) {
  const std::string good = kGood;
  const std::string cases[] = {
      "",
      "00",
      good.substr(0, 54),
      good + "-00",
      good + "0",
      " " + good,
      good + " ",
      "ff" + good.substr(2),
      "0g" + good.substr(2),
      "cc" + good.substr(2) + "x",
      "00-00000000000000000000000000000000-b7ad6b7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
      "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319c-B7AD6B7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
      "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
      "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01",
      "00-0af7651916cd43dd8448eb211c8031\xc3\xa9-b7ad6b7169203331-01",
      std::string(55, '\0'),
      std::string(100'000, '0'),
  };
  for (const std::string& text : cases) {
    EXPECT_FALSE(ParseTraceContext(text, "a=b").valid()) << text.substr(0, 80);
    EXPECT_TRUE(ParseTraceContext(text, "a=b").state.empty());
  }
}

TEST(TraceContext, AMalformedTracestateIsDroppedAlone) {
  std::string many = "a0=1";
  for (int i = 1; i < 32; ++i) absl::StrAppend(&many, ",a", i, "=1");
  for (const std::string& good :
       {std::string("a=1"), std::string("1a_-*/@b=x y!"), std::string("a=1,,b=2 ,\tc=3"), many}) {
    EXPECT_EQ(ParseTraceContext(kGood, good).state, good);
  }
  for (const std::string& bad :
       {std::string("a"), std::string("=1"), std::string("a="), std::string("A=1"),
        std::string("a=1=2"), std::string("a=\x01"), std::string("a=\xc3\xa9"), std::string(","),
        "a=1,a b=2" + std::string(), many + ",b=1", "a=" + std::string(600, 'x'),
        std::string(257, 'k') + "=v"}) {
    const TraceContext context = ParseTraceContext(kGood, bad);
    EXPECT_TRUE(context.valid());
    EXPECT_EQ(context.state, "") << bad;
  }
}

}  // namespace
}  // namespace baton
