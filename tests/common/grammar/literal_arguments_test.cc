#include "common/grammar/literal_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/grammar/schema_check.h"

namespace baton::grammar {
namespace {

using ::testing::HasSubstr;
using ToolCalls = v1::StructuredOutput::ToolCalls;

absl::Status Made(const std::string& schema, ToolCalls::ArgumentStyle style) {
  const auto normal = NormalSchema(schema, "schema");
  if (!normal.ok()) return normal.status();
  const auto value = json::Parse(*normal, "schema");
  if (!value.ok()) return value.status();
  return LiteralArguments(*value, style, "schema",
                          [](absl::string_view text) { return std::string(text); })
      .status();
}

constexpr ToolCalls::ArgumentStyle kStyles[] = {ToolCalls::ARGUMENT_STYLE_PYTHON,
                                                ToolCalls::ARGUMENT_STYLE_GEMMA};

// An object whose one property refers to the first of a chain of definitions; the last of them is
// `last`. The names of the chain descend, or ascend.
std::string Chain(int count, bool descends, const std::string& last) {
  const auto name = [&](int i) { return absl::StrCat(1000 + (descends ? count - i : i)); };
  std::string definitions;
  for (int i = 0; i + 1 < count; ++i) {
    absl::StrAppend(&definitions, "\"", name(i), "\":{\"$ref\":\"#/$defs/", name(i + 1), "\"},");
  }
  return absl::StrCat(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/)", name(0),
                      R"("}},"$defs":{)", definitions, "\"", name(count - 1), "\":", last, "}}");
}

TEST(LiteralArgumentsTest, ChainsOfDefinitionsEnd) {
  for (const auto style : kStyles) {
    for (const bool descends : {false, true}) {
      EXPECT_EQ(Made(Chain(2000, descends, R"({"type":"integer"})"), style), absl::OkStatus());
      const std::string first = descends ? "3000" : "1000";
      const absl::Status status =
          Made(Chain(2000, descends, absl::StrCat(R"({"$ref":"#/$defs/)", first, "\"}")), style);
      EXPECT_EQ(ErrorReason(status), "SCHEMA_UNSUPPORTED") << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("leads back to itself"));
    }
  }
}

TEST(LiteralArgumentsTest, TheDefinitionThatIsNamedLeadsBackToItself) {
  for (const auto style : kStyles) {
    const absl::Status status = Made(
        R"({"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/c"}},
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/n"}]},
                      "b": {"$ref": "#/$defs/n"}, "c": {"anyOf": [{"$ref": "#/$defs/n"},
                      {"$ref": "#/$defs/d"}]}, "d": {"$ref": "#/$defs/d"}, "n": {"type": "null"}}})",
        style);
    EXPECT_THAT(std::string(status.message()), HasSubstr("#/$defs/d: not supported"));
  }
}

TEST(LiteralArgumentsTest, AnArrayThatCannotBeWrittenIsRefusedWithTheReason) {
  const auto refused = [](const char* array, ToolCalls::ArgumentStyle style) {
    return std::string(
        Made(absl::StrCat(R"({"type": "object", "properties": {"a": )", array, "}}"), style)
            .message());
  };
  for (const auto style : kStyles) {
    EXPECT_THAT(
        refused(R"({"type": "array", "prefixItems": [{}, {}], "maxItems": 1})", style),
        HasSubstr(
            "#/properties/a: not supported: \"maxItems\" below the number of \"prefixItems\""));
    EXPECT_THAT(refused(R"({"type": "array", "minItems": 1})", style),
                HasSubstr("counts that no array of these items has"));
    EXPECT_EQ(refused(R"({"type": "array", "prefixItems": [{}, {}], "maxItems": 2})", style), "");
  }
}

}  // namespace
}  // namespace baton::grammar
