// Patterns against what they describe, by an engine that is not XGrammar's.
#include "common/grammar/value_patterns.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/grammar/normal_regex.h"
#include "common/grammar/schema_keywords.h"
#include "common/json/json.h"
#include "common/json/schema_types.h"
#include "tests/testing/seed.h"

namespace baton::grammar {
namespace {

bool Matches(const std::string& text, const std::string& pattern) {
  return std::regex_match(text, std::regex(pattern));
}

using Bound = std::optional<int64_t>;

bool IsWithin(int64_t value, Bound least, Bound most) {
  return (!least || value >= *least) && (!most || value <= *most);
}

void ExpectSame(int64_t value, Bound least, Bound most, const std::regex& pattern) {
  EXPECT_EQ(std::regex_match(absl::StrCat(value), pattern), IsWithin(value, least, most))
      << value << " from " << least.value_or(-999) << " to " << most.value_or(-999);
}

TEST(ValuePatternsTest, IntegersOfSmallRanges) {
  std::vector<Bound> bounds = {std::nullopt};
  for (int64_t bound = -121; bound <= 121; bound += 11) bounds.emplace_back(bound);
  for (const Bound least : bounds) {
    for (const Bound most : bounds) {
      const std::optional<std::string> pattern = IntegerPattern(least, most);
      ASSERT_EQ(pattern.has_value(), !least || !most || *least <= *most);
      if (!pattern) continue;
      const std::regex regex(*pattern);
      for (int64_t value = -140; value <= 140; ++value) ExpectSame(value, least, most, regex);
      for (const char* const text : {"", "-", "00", "-0", "01", "-01", "1.0", "+1", "1a"}) {
        EXPECT_FALSE(std::regex_match(text, regex)) << text;
      }
    }
  }
}

TEST(ValuePatternsTest, IntegersOfRandomRanges) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const auto draw = [&] {
    const auto magnitude = static_cast<int64_t>(random() >> (11 + random() % 53));
    return random() % 2 == 0 ? magnitude : -magnitude;
  };
  for (int i = 0; i < 200; ++i) {
    const Bound least = random() % 4 == 0 ? Bound() : draw();
    const Bound most = random() % 4 == 0 ? Bound() : draw();
    const std::optional<std::string> pattern = IntegerPattern(least, most);
    ASSERT_EQ(pattern.has_value(), !least || !most || *least <= *most);
    if (!pattern) continue;
    const std::regex regex(*pattern);
    for (const Bound near : {least, most, Bound(draw()), Bound(0)}) {
      for (int64_t step = -2; near && step <= 2; ++step) {
        ExpectSame(*near + step, least, most, regex);
      }
    }
  }
}

// A reader of JSON takes each of them for an integer, though an int64 does not hold it.
TEST(ValuePatternsTest, IntegersWithoutABoundAreWhatADoubleHolds) {
  const std::string longest(308, '9');
  const auto read = json::Parse(longest, "an integer");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_NE(json::SchemaTypeOf(*read) & json::kIntegerType, 0u);
  EXPECT_FALSE(json::Parse(longest + "9", "an integer").ok());
  for (const Bound least : {Bound(), Bound(-5), Bound(5)}) {
    const std::string pattern = *IntegerPattern(least, std::nullopt);
    EXPECT_TRUE(Matches(longest, pattern));
    EXPECT_FALSE(Matches(longest + "9", pattern));
  }
  for (const Bound most : {Bound(), Bound(-5), Bound(5)}) {
    const std::string pattern = *IntegerPattern(std::nullopt, most);
    EXPECT_TRUE(Matches("-" + longest, pattern));
    EXPECT_FALSE(Matches("-" + longest + "9", pattern));
  }
}

TEST(ValuePatternsTest, Numbers) {
  for (const char* const text : {"0", "-0", "12", "-1.5", "0.001", "1e5", "2.5E-10", "3e+7"}) {
    EXPECT_TRUE(Matches(text, NumberPattern())) << text;
  }
  const std::string longest =
      absl::StrCat(std::string(209, '9'), ".", std::string(400, '9'), "e+99");
  EXPECT_TRUE(Matches(longest, NumberPattern()));
  EXPECT_TRUE(json::Parse(longest, "a number").ok());
  EXPECT_FALSE(Matches("9" + longest, NumberPattern()));
  for (const char* const text : {"", "-", "01", ".5", "1.", "1e", "1e999", "+1", "0x1", "NaN"}) {
    EXPECT_FALSE(Matches(text, NumberPattern())) << text;
  }
}

TEST(ValuePatternsTest, Formats) {
  static const struct {
    const char* format;
    std::vector<const char*> good, bad;
  } kFormats[] = {
      {"date", {"2026-02-28", "0000-12-31"}, {"2026-13-01", "2026-1-1", "2026-00-10", "26-01-01"}},
      {"time", {"23:59:59Z", "00:00:00.123+02:30"}, {"24:00:00Z", "10:00:00", "1:00:00Z"}},
      {"date-time", {"2026-02-28T10:00:00Z"}, {"2026-02-28 10:00:00Z", "2026-02-28"}},
      {"duration", {"P1D", "PT1H30M", "P1Y2M3DT4H5M6S", "P3W", "PT5S"}, {"P", "PT", "1D", "P1H"}},
      {"hostname", {"a", "a-1.example.org"}, {"", "-a", "a-", "a..b", "a_b"}},
      {"ipv4", {"0.0.0.0", "255.249.199.10"}, {"256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"}},
      {"ipv6",
       {"::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"},
       {"1:2:3:4:5:6:7", "1::2::3", "12345::", ":1", "1:2:3:4:5:6:7:8:9", ""}},
      {"uuid", {"123e4567-e89b-12d3-a456-42661417400F"}, {"123e4567e89b12d3a45642661417400F"}}};
  ASSERT_EQ(std::size(kFormats), Formats().size());
  for (const auto& [format, good, bad] : kFormats) {
    ASSERT_TRUE(Formats().contains(format));
    const std::string pattern = FormatPattern(format);
    for (const char* const text : good) EXPECT_TRUE(Matches(text, pattern)) << text;
    for (const char* const text : bad) EXPECT_FALSE(Matches(text, pattern)) << text;
  }
}

// What XGrammar reads one way only.
TEST(ValuePatternsTest, PatternsAreInTheNormalForm) {
  std::vector<std::string> patterns = {NumberPattern(), *IntegerPattern(-17, 4'321),
                                       *IntegerPattern(std::nullopt, -5),
                                       *IntegerPattern(99, std::nullopt)};
  for (const absl::string_view format : Formats()) patterns.push_back(FormatPattern(format));
  for (const std::string& pattern : patterns) {
    const auto normal = NormalRegex(pattern, RegexUse::kJsonString, "field");
    ASSERT_TRUE(normal.ok()) << normal.status();
    EXPECT_EQ(*normal, pattern);
  }
}

}  // namespace
}  // namespace baton::grammar
