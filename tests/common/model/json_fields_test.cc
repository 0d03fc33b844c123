#include "common/model/json_fields.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;

TEST(JsonFieldsTest, NamesFileFieldFoundAndExpected) {
  const json::Value document =
      json::Parse(R"({"i": 7, "f": 1.5, "s": "x", "b": true, "n": null, "l": [1, "y"],
                    "o": {"k": -1}, "huge": 99999999999999999999, "strings": ["p", 3]})",
                  "f")
          .value();
  const JsonFields fields = JsonFields::Make(document, "dir/c.json").value();
  EXPECT_EQ(fields.Int("i", 1, 10).value(), 7);
  EXPECT_EQ(fields.Real("i", 1, 10).value(), 7);
  EXPECT_EQ(fields.OptionalInt("n", 1, 10).value(), std::nullopt);
  EXPECT_TRUE(fields.IsNull("n"));
  EXPECT_EQ(fields.Ints("i", 0, 9).value(), std::vector<int>{7});
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message(fields.Int("i", 1, 5)),
            "dir/c.json: i: found 7, expected an integer in [1, 5]");
  EXPECT_THAT(message(fields.Int("f", 1, 5)), HasSubstr("f: found 1.5"));
  EXPECT_THAT(message(fields.Int("huge", 1, 5)), HasSubstr("huge: found 99999999999999999999"));
  EXPECT_THAT(message(fields.Int("gone", 1, 5)), HasSubstr("gone: found nothing"));
  EXPECT_THAT(message(fields.Int("l", 1, 5)), HasSubstr("l: found a list"));
  EXPECT_THAT(message(fields.Real("s", 1, 5)), HasSubstr("s: found \"x\""));
  EXPECT_THAT(message(fields.Bool("i", false)), HasSubstr("expected true or false"));
  EXPECT_THAT(message(fields.OptionalString("b")), HasSubstr("expected a string"));
  EXPECT_THAT(message(fields.Ints("l", 0, 9)), HasSubstr("l[1]: found \"y\""));
  EXPECT_THAT(message(fields.Strings("strings")), HasSubstr("strings[1]: found 3"));
  EXPECT_THAT(message(fields.OptionalObject("i")), HasSubstr("expected an object"));
  EXPECT_THAT(message(fields.OptionalObject("o").value()->Int("k", 0, 9)),
              HasSubstr("dir/c.json: o.k: found -1"));
}

// As Python writes it, and Transformers before version 5.
TEST(JsonFieldsTest, SpellsInfinitiesOutsideOfTexts) {
  const std::string text = SpellInfinities(
      R"({"limit": [0.0, Infinity], "Infinity": "\"Infinity", "low": -Infinity, "x": "\\"})");
  EXPECT_EQ(text, R"({"limit": [0.0, {"__float__": "Infinity"}], "Infinity": "\"Infinity", )"
                  R"("low": {"__float__": "-Infinity"}, "x": "\\"})");
  const json::Value document = json::Parse(text, "f").value();
  const JsonFields fields = JsonFields::Make(document, "f").value();
  EXPECT_EQ(fields.Reals("limit", 0, HUGE_VAL).value(), (std::vector<double>{0, HUGE_VAL}));
  EXPECT_FALSE(fields.Real("low", -HUGE_VAL, HUGE_VAL).ok());
  for (const char* other : {"", "\"", "\"\\", "Infinit", "NaN", "-"}) {
    EXPECT_EQ(SpellInfinities(other), other);
  }
}

// As Transformers 5 writes it.
TEST(JsonFieldsTest, ReadsInfinityWhereItIsAllowed) {
  const json::Value document = json::Parse(R"({"limit": [0.5, {"__float__": "Infinity"}],
      "nan": {"__float__": "NaN"}, "other": {"k": "Infinity"}})",
                                           "f")
                                   .value();
  const JsonFields fields = JsonFields::Make(document, "f").value();
  EXPECT_EQ(fields.Reals("limit", 0, HUGE_VAL).value(), (std::vector<double>{0.5, HUGE_VAL}));
  EXPECT_THAT(std::string(fields.Reals("limit", 0, 1e300).status().message()),
              HasSubstr("limit[1]: found an object, expected a number in [0, 1e+300]"));
  EXPECT_FALSE(fields.Real("nan", 0, HUGE_VAL).ok());
  EXPECT_FALSE(fields.Real("other", 0, HUGE_VAL).ok());
}

TEST(JsonFieldsTest, KnowsWhatNothingHasAskedFor) {
  const json::Value document =
      json::Parse(R"({"z": 1, "read": 2, "a": "x", "ignored": 3, "is_null": true, "inner": {"k": 4},
                    "n": null, "f": false, "zero": 0, "real_zero": 0.0, "s": "", "l": [], "o": {},
                    "list": [0]})",
                  "f")
          .value();
  const JsonFields fields = JsonFields::Make(document, "f").value();
  const JsonFields copy = fields;
  EXPECT_TRUE(copy.Int("read", 0, 9).ok());
  copy.Ignore("ignored");
  EXPECT_FALSE(fields.IsNull("is_null"));
  const JsonFields inner = *fields.OptionalObject("inner").value();
  EXPECT_EQ(fields.Unread(), (std::vector<std::string>{"z", "a", "list"}));
  EXPECT_EQ(inner.Unread(), std::vector<std::string>{"k"});
  EXPECT_EQ(fields.NumberOf("z"), 1);
  EXPECT_EQ(fields.NumberOf("a"), std::nullopt);
  EXPECT_EQ(fields.Found("a"), "\"x\"");
  EXPECT_EQ(fields.Unread(), std::vector<std::string>{"list"});
}

}  // namespace
}  // namespace baton::model
