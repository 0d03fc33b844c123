#include "common/model/json.h"

#include <string>

#include "common/model/json_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::model {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto document = ParseJson(text, "dir/a.json");
  EXPECT_EQ(document.status().code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(document.status().message()), HasSubstr("dir/a.json"));
  return std::string(document.status().message());
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  for (const std::string text : {"", "{", "{\"a\":1}x", "{\"a\":}", "[1,]", "nul", "{\"a\":1e999}",
                                 "\"\xff\xfe\"", "{\"a\" 1}", "NaN"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("not valid JSON")) << text;
  }
}

TEST(JsonTest, RefusesAKeyTwice) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "b": 2, "a": 3})"), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(ErrorOf(R"({"x": {"a": 1, "a": 1}})"), HasSubstr("\"a\" stands twice"));
  EXPECT_TRUE(ParseJson(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "f").ok());
}

TEST(JsonTest, BoundsDepthAndSize) {
  EXPECT_THAT(ErrorOf(std::string(100000, '[')), HasSubstr("nested deeper"));
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "{\"a\":";
  EXPECT_THAT(ErrorOf(deep), HasSubstr("nested deeper"));
  std::string wide = "[0";
  for (int i = 0; i < 70000; ++i) wide += ",0";
  EXPECT_THAT(ErrorOf(wide + "]"), HasSubstr("more than 65536 values"));
}

TEST(JsonTest, CanonicalTextIgnoresOrderAndSpace) {
  const auto canonical = [](const char* text) {
    return CanonicalText(ParseJson(text, "f").value());
  };
  EXPECT_EQ(canonical(R"({"b": [1, {"y": null, "x": true}], "a": "z"})"),
            canonical("{\"a\":\"z\",\n\"b\":[1,{\"x\":true,\"y\":null}]}"));
  EXPECT_NE(canonical(R"({"a": 1})"), canonical(R"({"a": "1"})"));
  EXPECT_NE(canonical(R"({"a": [1, 2]})"), canonical(R"({"a": [2, 1]})"));
  EXPECT_NE(canonical(R"({"a": 1.5})"), canonical(R"({"a": 1.25})"));
}

TEST(JsonTest, MessagesCarryNoControlCharacters) {
  EXPECT_THAT(Quoted("a\nb\x1b[31m"), testing::StrEq("\"a\\nb\\x1b[31m\""));
  EXPECT_LT(Quoted(std::string(100000, 'x')).size(), 200);
}

TEST(JsonFieldsTest, NamesFileFieldFoundAndExpected) {
  const JsonValue document =
      ParseJson(R"({"i": 7, "f": 1.5, "s": "x", "b": true, "n": null, "l": [1, "y"],
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
  EXPECT_THAT(message(fields.Int("huge", 1, 5)), HasSubstr("huge: found 1"));
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

}  // namespace
}  // namespace baton::model
