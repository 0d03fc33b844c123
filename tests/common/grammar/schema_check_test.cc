#include "common/grammar/schema_check.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/grammar/regex_check.h"

namespace baton::grammar {
namespace {

using Kind = GrammarSpec::Kind;

absl::Status Schema(const std::string& schema) { return CheckSpec({Kind::kJsonSchema, {schema}}); }
absl::Status Regex(const std::string& regex) { return CheckSpec({Kind::kRegex, {regex}}); }

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
  EXPECT_EQ(ErrorReason(Regex(std::string(kMaxRegexBytes + 1, 'a'))), "SCHEMA_TOO_COMPLEX");
  EXPECT_EQ(ErrorReason(Regex("a{1001}")), "SCHEMA_TOO_COMPLEX");
  EXPECT_EQ(ErrorReason(Regex(std::string(65, '(') + "a" + std::string(65, ')'))),
            "SCHEMA_TOO_COMPLEX");
  const std::vector<std::string> many(kMaxChoiceCount + 1, "a");
  EXPECT_EQ(ErrorReason(CheckSpec({Kind::kChoices, many})), "SCHEMA_TOO_COMPLEX");
  EXPECT_EQ(ErrorReason(CheckSpec({Kind::kChoices, {std::string(kMaxChoiceBytes + 1, 'a')}})),
            "SCHEMA_TOO_COMPLEX");
  for (const auto& choices : {std::vector<std::string>{}, {"a", ""}, {"\xff"}}) {
    EXPECT_EQ(ErrorReason(CheckSpec({Kind::kChoices, choices})), "SCHEMA_INVALID");
  }
  EXPECT_TRUE(CheckSpec({Kind::kChoices, {"yes", "n\"o\n\\"}}).ok());
}

TEST(RegexCheckTest, AcceptsAndRefuses) {
  for (const char* const regex :
       {"a", "^(?:ab|c)?d{2}e{1,}f{0,3}$", R"([^a-z\]\-\d]+\.\w\\)", R"(\x41\u00e9)", "é+?"}) {
    EXPECT_TRUE(Regex(regex).ok()) << regex << ": " << Regex(regex);
  }
  for (const char* const regex : {"a^b", "a$b", "(?=a)", "(?!a)", "(?<n>a)", "(?i)a", R"(\b)",
                                  R"((a)\1)", R"(\p{L})", R"(\A)", "[[:alpha:]]", R"(\cA)"}) {
    EXPECT_EQ(ErrorReason(Regex(regex)), "SCHEMA_UNSUPPORTED") << regex << ": " << Regex(regex);
  }
  for (const char* const regex :
       {"", "(a", "a)", "[a", "[]", "a{", "a{x}", "a{,3}", "\\", "\xff", R"(\x4)"}) {
    EXPECT_EQ(ErrorReason(Regex(regex)), "SCHEMA_INVALID") << regex << ": " << Regex(regex);
  }
}

TEST(RegexCheckTest, ADotIsNoNewline) {
  EXPECT_EQ(WithoutNewlines(R"(a.\.[.])"), R"(a[^\n\r]\.[.])");
}

}  // namespace
}  // namespace baton::grammar
