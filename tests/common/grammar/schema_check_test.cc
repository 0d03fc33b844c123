#include "common/grammar/schema_check.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::grammar {
namespace {

using Kind = GrammarSpec::Kind;

absl::Status Schema(const std::string& schema) { return CheckSpec({Kind::kJsonSchema, {schema}}); }

TEST(SchemaCheckTest, AcceptsWhatIsEnforced) {
  for (const char* const schema : {
           "true",
           "{}",
           R"({"type": "object"})",
           R"({"title": "T", "description": "d", "type": "object",
               "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9},
                              "b": {"type": ["string", "null"], "maxLength": 5},
                              "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1}},
               "required": ["a"], "additionalProperties": false,
               "$defs": {"d": {"enum": ["x", 1, null]}}})",
           R"({"type": "object", "additionalProperties": {"type": "number"}})",
           R"({"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"})",
           R"({"type": "string", "format": "date"})",
           R"({"anyOf": [{"type": "string"}, {"const": "x"}]})",
           R"({"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}]})",
           R"({"oneOf": [{"const": "a"}, {"enum": ["b", 1]}]})",
           R"({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}]})",
           R"({"type": "integer", "enum": [1, 2]})",
       }) {
    EXPECT_TRUE(Schema(schema).ok()) << schema << ": " << Schema(schema);
  }
}

TEST(SchemaCheckTest, RefusesByNameWhatWouldBeWeakened) {
  const struct {
    const char* schema;
    const char* named;
  } cases[] = {
      {R"({"not": {"type": "string"}})", "\"not\""},
      {R"({"if": {}, "then": {}})", "\"if\""},
      {R"({"type": "array", "uniqueItems": true})", "\"uniqueItems\""},
      {R"({"type": "array", "contains": {}})", "\"contains\""},
      {R"({"type": "object", "dependentRequired": {}})", "\"dependentRequired\""},
      {R"({"type": "object", "patternProperties": {}})", "\"patternProperties\""},
      {R"({"type": "object", "minProperties": 1})", "\"minProperties\""},
      {R"({"type": "object", "unevaluatedProperties": false})", "\"unevaluatedProperties\""},
      {R"({"type": "integer", "multipleOf": 3})", "\"multipleOf\""},
      {R"({"type": "number", "minimum": 3})", "number"},
      {R"({"type": "integer", "minimum": 0.5})", "whole"},
      {R"({"allOf": [{}, {}]})", "\"allOf\""},
      {R"({"type": "string", "format": "email"})", "format"},
      {R"({"type": "string", "pattern": "a", "minLength": 2})", "pattern"},
      {R"({"type": "string", "pattern": "a.b"})", "JSON string"},
      {R"({"type": "string", "pattern": "[ -~]"})", "JSON string"},
      {R"({"type": "string", "pattern": "\\S"})", "JSON string"},
      {R"({"minLength": 2})", "\"minLength\""},
      {R"({"type": "string", "minimum": 2})", "\"minimum\""},
      {R"({"$ref": "#/$defs/a", "minLength": 1, "$defs": {"a": {}}})", "\"minLength\""},
      {R"({"anyOf": [{}], "properties": {}})", "\"properties\""},
      {R"({"$ref": "http://x/y"})", "reference"},
      {R"({"properties": {"a": {"not": {}}}, "$ref": "#/properties/a"})", "\"properties\""},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "branches"},
      {R"({"oneOf": [{"const": 1}, {"enum": [2, 1]}]})", "branches"},
      {R"({"oneOf": [{"const": 1}, {"type": "integer"}]})", "branches"},
      {R"({"oneOf": [{"properties": {}}, {"type": "string"}]})", "branches"},
      {R"({"type": "object", "required": ["a"]})", "\"a\""},
      {R"({"properties": {"a": {}}, "additionalProperties": true})", "additionalProperties"},
      {R"({"type": "object", "properties": {"a": {"items": [{"not": {}}]}}})", "\"items\""},
      {R"({"type": "array", "prefixItems": [{}, {}], "maxItems": 1})", "\"prefixItems\""},
      {"false", "false"},
  };
  for (const auto& [schema, named] : cases) {
    const absl::Status status = Schema(schema);
    EXPECT_EQ(ErrorReason(status), "SCHEMA_UNSUPPORTED") << schema << ": " << status;
    EXPECT_EQ(ErrorField(status), "structured_output.json_schema");
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << schema << ": " << status;
  }
}

TEST(SchemaCheckTest, RefusesWhatIsNoSchema) {
  for (const char* const schema :
       {"", "{", "1", "[]", R"({"type": "text"})", R"({"type": []})", R"({"enum": []})",
        R"({"enum": 3})", R"({"properties": []})", R"({"type": "object", "required": "a"})",
        R"({"type": "string", "minLength": -1})", R"({"$ref": "#/$defs/none"})",
        R"({"type": "string", "enum": ["a", 1]})", R"({"type": "string", "type": "null"})"}) {
    EXPECT_EQ(ErrorReason(Schema(schema)), "SCHEMA_INVALID") << schema << ": " << Schema(schema);
  }
}

TEST(SchemaCheckTest, Bounds) {
  std::string nested = "true";
  for (size_t i = 0; i < kMaxSchemaDepth; ++i) {
    nested = absl::StrCat(R"({"type": "array", "items": )", nested, "}");
  }
  std::string values = "0";
  for (size_t i = 1; i <= kMaxEnumValues; ++i) absl::StrAppend(&values, ",", i);
  for (const std::string& schema :
       {nested, absl::StrCat(R"({"enum": [)", values, "]}"),
        absl::StrCat(R"({"title": ")", std::string(kMaxSchemaBytes, 'x'), R"("})"),
        std::string(R"({"type": "string", "maxLength": 100000})")}) {
    EXPECT_EQ(ErrorReason(Schema(schema)), "SCHEMA_TOO_COMPLEX") << Schema(schema);
  }
  const std::vector<std::string> many(kMaxChoiceCount + 1, "a");
  EXPECT_EQ(ErrorReason(CheckSpec({Kind::kChoices, many})), "SCHEMA_TOO_COMPLEX");
  EXPECT_EQ(ErrorReason(CheckSpec({Kind::kChoices, {std::string(kMaxChoiceBytes + 1, 'a')}})),
            "SCHEMA_TOO_COMPLEX");
  for (const auto& choices : {std::vector<std::string>{}, {"a", ""}, {"\xff"}}) {
    EXPECT_EQ(ErrorReason(CheckSpec({Kind::kChoices, choices})), "SCHEMA_INVALID");
  }
  EXPECT_TRUE(CheckSpec({Kind::kChoices, {"yes", "n\"o\n\\"}}).ok());
}

TEST(SchemaCheckTest, ChoicesSayWhichOneIsWrong) {
  const absl::Status empty = CheckSpec({Kind::kChoices, {"a", ""}});
  EXPECT_EQ(ErrorField(empty), "structured_output.choices[1]");
  EXPECT_TRUE(CheckSpec({Kind::kChoices, {std::string("a\0b", 3)}}).ok());
}

TEST(SchemaCheckTest, MessagesOfPatternsHaveTheirPlace) {
  const absl::Status status = Schema(
      R"({"properties": {"a": {"type": "array", "items": {"type": "string", "pattern": "x\\x00"}}}})");
  EXPECT_EQ(ErrorReason(status), "SCHEMA_UNSUPPORTED");
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "#/properties/a/items/pattern: regular expression, byte 1: "))
      << status;
}

TEST(NormalSchemaTest, PatternsAndLengthsAreInNormalForm) {
  const auto normal = [](const char* schema) { return NormalSchema(schema).value(); };
  EXPECT_EQ(normal(R"({"type": "string", "pattern": "^[\\^a]\\x2e5$", "title": "t"})"),
            R"({"type":"string","title":"t","pattern":"[a^]\\.5"})");
  // A text that is no keyword stays: a name, a value, an annotation.
  for (
      const char* const schema :
      {R"({"properties":{"pattern":{"const":{"pattern":"\\x41","minLength":1}}}})",
       R"({"enum":["\u0000\u001f\"\\",{"type":"string","maxLength":3}],"default":{"pattern":"[\\^a]"}})",
       R"({"type":"string","minLength":0})"}) {
    EXPECT_EQ(normal(schema), schema);
  }
  const std::string characters = R"([^\\u0000-\u001f\"\\\\\\ud800-\\udfff])";
  EXPECT_EQ(normal(R"({"type":["null","string"],"minLength":2})"),
            absl::StrCat(R"({"type":["null","string"],"pattern":")", characters, R"({2,}"})"));
  EXPECT_EQ(normal(R"({"items":{"type":"string","minLength":1,"maxLength":40},"type":"array"})"),
            absl::StrCat(R"({"items":{"type":"string","pattern":")", characters,
                         R"({1,40}"},"type":"array"})"));
  EXPECT_EQ(normal(R"({"type":"string","maxLength":0})"), R"({"type":"string","pattern":""})");
  EXPECT_EQ(ErrorReason(NormalSchema(R"({"type":"string","minLength":2,"maxLength":1})").status()),
            "SCHEMA_INVALID");
}

}  // namespace
}  // namespace baton::grammar
