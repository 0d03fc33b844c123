#include "common/json/json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::json {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto document = Parse(text, "dir/a.json");
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

TEST(JsonTest, SkipsAByteOrderMark) {
  const auto parsed = Parse("\xEF\xBB\xBF{\"a\": 1}", "f");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->keys.size(), 1u);
  EXPECT_FALSE(Parse("{} \xEF\xBB\xBF", "f").ok());
}

TEST(JsonTest, RefusesAKeyTwice) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "b": 2, "a": 3})"), HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(ErrorOf(R"({"x": {"a": 1, "a": 1}})"), HasSubstr("\"a\" appears twice"));
  EXPECT_TRUE(Parse(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "f").ok());
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
  const auto canonical = [](const char* text) { return CanonicalText(Parse(text, "f").value()); };
  EXPECT_EQ(canonical(R"({"b": [1, {"y": null, "x": true}], "a": "z"})"),
            canonical("{\"a\":\"z\",\n\"b\":[1,{\"x\":true,\"y\":null}]}"));
  EXPECT_NE(canonical(R"({"a": 1})"), canonical(R"({"a": "1"})"));
  EXPECT_NE(canonical(R"({"a": [1, 2]})"), canonical(R"({"a": [2, 1]})"));
  EXPECT_NE(canonical(R"({"a": 1.5})"), canonical(R"({"a": 1.25})"));
}

TEST(JsonTest, TextIsTheDocument) {
  const auto text = [](absl::string_view json) { return ToText(Parse(json, "f").value()); };
  EXPECT_EQ(text(R"( {"b": [1, -2.5, [], {}], "a": {"y": null, "x": true}} )"),
            R"({"b":[1,-2.5,[],{}],"a":{"y":null,"x":true}})");
  EXPECT_EQ(text(R"(["\u0000\u001f\u007f\"\\\/\ud83d\ude00", 9223372036854775807, 0.1])"),
            "[\"\\u0000\\u001f\\u007f\\\"\\\\/\xf0\x9f\x98\x80\",9223372036854775807,"
            "0.1]");
  // Whole numbers keep their digits, be it that 64 bits hold them without a sign, or not at all.
  for (const char* const digits :
       {"[9223372036854775808,-9223372036854775808]", "[-9223372036854775809]",
        "[18446744073709551615,{\"a\":123456789012345678901234567890}]", "[1e+20]"}) {
    EXPECT_EQ(text(digits), digits);
  }
}

TEST(JsonTest, MessagesCarryNoControlCharacters) {
  EXPECT_THAT(Quoted("a\nb\x1b[31m"), ::testing::StrEq("\"a\\nb\\x1b[31m\""));
  EXPECT_LT(Quoted(std::string(100000, 'x')).size(), 200);
}

}  // namespace
}  // namespace baton::json
