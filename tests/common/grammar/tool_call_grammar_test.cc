#include "common/grammar/tool_call_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/grammar/bare_arguments.h"
#include "common/grammar/from_proto.h"
#include "common/grammar/schema_check.h"

namespace baton::grammar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ToolCalls = v1::StructuredOutput::ToolCalls;

constexpr char kSchema[] = R"({"type": "object", "properties": {"a": {"type": "integer"}}})";

ToolCalls Good() {
  ToolCalls calls;
  calls.set_opening("<calls>");
  calls.set_before_name("<call>");
  calls.set_before_arguments(":");
  calls.set_after_arguments("</call>");
  calls.set_separator("\n");
  calls.set_closing("</calls>");
  calls.set_trigger("<calls>");
  calls.add_tools()->set_name("f");
  calls.mutable_tools(0)->set_parameters(kSchema);
  calls.add_tools()->set_name("g");
  return calls;
}

std::string Refused(const std::function<void(ToolCalls&)>& change) {
  v1::StructuredOutput structured;
  *structured.mutable_tool_calls() = Good();
  change(*structured.mutable_tool_calls());
  const absl::Status status = CheckSpec(FromProto(structured));
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  const std::string field = ErrorField(status);
  return status.ok() ? ""
                     : absl::StrCat(ErrorReason(status), " ",
                                    absl::StripPrefix(field, "structured_output.tool_calls."));
}

TEST(ToolCallGrammarTest, WhatTheProtoAllowsIsAccepted) {
  EXPECT_EQ(Refused([](ToolCalls&) {}), "");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.set_single(true); }), "");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.clear_before_name(); }), "");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.set_required(true);
              c.clear_trigger();
            }),
            "");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.clear_trigger();
              c.add_excluded("<ca");
            }),
            "");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.clear_opening();
              c.set_trigger("<call>");
              for (size_t i = 0; i < kMaxExcludedTexts; ++i) c.add_excluded("x");
            }),
            "");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              while (c.tools_size() < static_cast<int>(kMaxTools)) {
                const std::string name = absl::StrCat("t", c.tools_size());
                c.add_tools()->set_name(name);
              }
            }),
            "");
}

TEST(ToolCallGrammarTest, WhatItDoesNotIsRefusedByName) {
  EXPECT_EQ(Refused([](ToolCalls& c) { c.clear_tools(); }), "SCHEMA_INVALID tools");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              for (size_t i = 0; i <= kMaxTools; ++i) c.add_tools()->set_name(absl::StrCat(i));
            }),
            "SCHEMA_TOO_COMPLEX tools");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.mutable_tools(1)->set_name("f"); }),
            "SCHEMA_INVALID tools[1].name");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.mutable_tools(1)->clear_name(); }),
            "SCHEMA_INVALID tools[1].name");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.mutable_tools(1)->set_name(std::string(kMaxToolNameBytes + 1, 'x'));
            }),
            "SCHEMA_TOO_COMPLEX tools[1].name");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.mutable_tools(1)->set_parameters("{"); }),
            "SCHEMA_INVALID tools[1].parameters");
  for (const char* const schema :
       {R"({"type": "object", "properties": {"a": {"not": {}}}})", R"({"type": "string"})", "true",
        "{}", R"({"type": ["object", "null"]})", R"({"anyOf": [{"type": "object"}]})"}) {
    EXPECT_EQ(Refused([&](ToolCalls& c) { c.mutable_tools(0)->set_parameters(schema); }),
              "SCHEMA_UNSUPPORTED tools[0].parameters")
        << schema;
  }
  EXPECT_EQ(Refused([](ToolCalls& c) {
              const std::string padding(kMaxSchemaBytes - 100, 'x');
              for (const char* const name : {"h", "i", "j", "k", "l"}) {
                c.add_tools()->set_name(name);
                c.mutable_tools()->rbegin()->set_parameters(
                    absl::StrCat(R"({"type": "object", "title": ")", padding, "\"}"));
              }
            }),
            "SCHEMA_TOO_COMPLEX tools[6].parameters");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.clear_before_name();
              c.clear_opening();
            }),
            "SCHEMA_INVALID before_name");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.clear_before_arguments(); }),
            "SCHEMA_INVALID before_arguments");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.set_separator(std::string(257, ' ')); }),
            "SCHEMA_TOO_COMPLEX separator");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.set_trigger("<call>"); }), "SCHEMA_INVALID trigger");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.set_required(true); }), "SCHEMA_INVALID trigger");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.set_required(true);
              c.clear_trigger();
              c.add_excluded("x");
            }),
            "SCHEMA_INVALID excluded");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.clear_trigger(); }), "SCHEMA_INVALID excluded");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.clear_trigger();
              c.add_excluded("<");
              c.add_excluded(" x");
            }),
            "SCHEMA_INVALID excluded[1]");
  EXPECT_EQ(Refused([](ToolCalls& c) {
              for (size_t i = 0; i <= kMaxExcludedTexts; ++i) c.add_excluded("x");
            }),
            "SCHEMA_TOO_COMPLEX excluded");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.add_excluded(""); }), "SCHEMA_INVALID excluded[0]");
}

TEST(ToolCallGrammarTest, AnAnswerBesideCallsHasASchema) {
  const auto answer = [](ToolCalls& calls, const char* schema) {
    calls.clear_trigger();
    calls.set_answer_schema(schema);
  };
  EXPECT_EQ(Refused([&](ToolCalls& c) { answer(c, kSchema); }), "");
  EXPECT_EQ(Refused([&](ToolCalls& c) { answer(c, "{"); }), "SCHEMA_INVALID answer_schema");
  EXPECT_EQ(Refused([&](ToolCalls& c) { answer(c, R"({"not": {}})"); }),
            "SCHEMA_UNSUPPORTED answer_schema");
  EXPECT_EQ(Refused([&](ToolCalls& c) {
              answer(c, kSchema);
              c.set_required(true);
            }),
            "SCHEMA_INVALID answer_schema");
  EXPECT_EQ(Refused([](ToolCalls& c) { c.set_answer_schema(kSchema); }),
            "SCHEMA_INVALID answer_schema");
}

TEST(ToolCallGrammarTest, MessagesHaveMarks) {
  const auto messages = [](ToolCalls& calls) {
    calls.clear_trigger();
    calls.set_before_answer("<final>");
    calls.add_before_message("<think>");
    calls.set_after_message("<end>");
    calls.add_excluded("<end>");
  };
  const auto refused = [&](const std::function<void(ToolCalls&)>& change) {
    return Refused([&](ToolCalls& c) {
      messages(c);
      change(c);
    });
  };
  EXPECT_EQ(refused([](ToolCalls&) {}), "");
  EXPECT_EQ(refused([](ToolCalls& c) { c.set_answer_schema(kSchema); }), "");
  EXPECT_EQ(refused([](ToolCalls& c) {
              c.clear_before_message();
              c.clear_after_message();
            }),
            "");
  EXPECT_EQ(refused([](ToolCalls& c) { c.set_answer_schema("{"); }),
            "SCHEMA_INVALID answer_schema");
  EXPECT_EQ(refused([](ToolCalls& c) { c.set_trigger("<calls>"); }),
            "SCHEMA_INVALID before_answer");
  EXPECT_EQ(refused([](ToolCalls& c) {
              c.set_required(true);
              c.clear_excluded();
            }),
            "SCHEMA_INVALID before_answer");
  EXPECT_EQ(refused([](ToolCalls& c) { c.clear_before_answer(); }), "SCHEMA_INVALID before_answer");
  EXPECT_EQ(refused([](ToolCalls& c) { c.clear_after_message(); }), "SCHEMA_INVALID after_message");
  EXPECT_EQ(refused([](ToolCalls& c) { c.set_before_message(0, ""); }),
            "SCHEMA_INVALID before_message[0]");
  EXPECT_EQ(refused([](ToolCalls& c) { c.set_before_answer(std::string(257, 'x')); }),
            "SCHEMA_TOO_COMPLEX before_answer");
  EXPECT_EQ(refused([](ToolCalls& c) {
              for (size_t i = 0; i < kMaxMessageTexts; ++i) c.add_before_message("x");
            }),
            "SCHEMA_TOO_COMPLEX before_message");
}

TEST(ToolCallGrammarTest, AStyleSaysWhatItCannotWrite) {
  const auto refused = [](const std::string& property) {
    return Refused([&](ToolCalls& c) {
      c.set_argument_style(ToolCalls::ARGUMENT_STYLE_GLM_XML_COMPACT);
      c.clear_before_arguments();
      c.mutable_tools(0)->set_parameters(
          absl::StrCat(R"({"type": "object", "properties": {)", property, R"(}, "required": []})"));
    });
  };
  for (const char* const property :
       {R"("a": {"type": "string"})", R"("a": {"enum": ["x", ""]})", R"("a": {"type": "integer"})",
        R"("a": {"type": ["string", "null"]})", R"("a": {})", R"("a": true)",
        R"("a": {"type": "array", "items": {"type": "string", "maxLength": 3}})", ""}) {
    EXPECT_EQ(refused(property), "") << property;
  }
  const std::vector<const char*> constrained = {
      R"("a": {"type": "string", "maxLength": 3})", R"("a": {"type": "string", "format": "date"})",
      R"("a": {"type": "string", "pattern": "^[a-z]+$"})", R"("a": {"enum": ["x", 1]})",
      R"("a": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]})"};
  for (const char* const property : constrained) EXPECT_EQ(refused(property), "") << property;
  for (
      const char* const property :
      {R"("a": {"enum": ["1", 1]})", R"("a": {"enum": ["</arg_value>"]})",
       R"("a b": {"type": "integer"})", R"("a": {"type": "array", "items": {"$ref": "#"}})",
       R"("a": {"type": "string", "pattern": "^</?[a-z_]+>$"})",
       R"("a": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {}}]})"}) {
    EXPECT_EQ(refused(property), "SCHEMA_UNSUPPORTED tools[0].parameters") << property;
  }
  // Workers without a grammar level know no more of strings than their types.
  const auto at_first_level = [](const std::string& property) {
    return CheckArguments(absl::StrCat(R"({"type": "object", "properties": {)", property, "}}"),
                          ToolCalls::ARGUMENT_STYLE_GLM_XML, "field", /*constrains_text=*/false);
  };
  for (const char* const property : constrained) {
    EXPECT_EQ(ErrorReason(at_first_level(property)), "SCHEMA_UNSUPPORTED") << property;
  }
  for (const char* const property :
       {R"("a": {"enum": ["x", ""]})", R"("a": {"type": ["string", "null"]})",
        R"("a": {"anyOf": [{"type": "string"}, {"type": "null"}]})",
        R"("a": {"type": "integer", "minimum": 1})"}) {
    EXPECT_EQ(at_first_level(property), absl::OkStatus()) << property;
  }
  EXPECT_EQ(Refused([](ToolCalls& c) {
              c.set_argument_style(static_cast<v1::StructuredOutput::ToolCalls::ArgumentStyle>(9));
            }),
            "SCHEMA_INVALID structured_output.tool_calls");
}

// A small schema whose properties refer to the same values again and again is no large format.
TEST(ToolCallGrammarTest, WhatPropertiesReferToIsBounded) {
  const auto check = [](int properties, int branches, const std::string& definition) {
    std::vector<std::string> names(static_cast<size_t>(properties)), refs;
    for (int i = 0; i < properties; ++i) {
      names[static_cast<size_t>(i)] = absl::StrCat("\"p", i, R"(": {"$ref": "#/$defs/x"})");
    }
    refs.assign(static_cast<size_t>(branches), R"({"$ref": "#/$defs/d"})");
    return CheckArguments(absl::StrCat(R"({"type": "object", "$defs": {"d": )", definition,
                                       R"(, "x": {"anyOf": [)", absl::StrJoin(refs, ","),
                                       R"(]}}, "properties": {)", absl::StrJoin(names, ","), "}}"),
                          ToolCalls::ARGUMENT_STYLE_QWEN_XML, "field");
  };
  const auto listed = [](int count, const std::string& value) {
    return absl::StrCat(
        R"({"enum": [)",
        absl::StrJoin(std::vector<std::string>(static_cast<size_t>(count), value), ","), "]}");
  };
  const std::string pattern =
      absl::StrCat(R"({"type": "string", "pattern": ")",
                   absl::StrJoin(std::vector<std::string>(1000, "\\\\w"), ""), "\"}");
  for (const std::string& definition : {listed(1000, "\"\""), pattern}) {
    EXPECT_EQ(ErrorReason(check(3, 100, definition)), "SCHEMA_TOO_COMPLEX");
    EXPECT_EQ(check(3, 2, definition), absl::OkStatus());
  }
  EXPECT_EQ(ErrorReason(check(20, 500, listed(1, "\"a\""))), "SCHEMA_TOO_COMPLEX");
  EXPECT_EQ(check(50, 2, listed(20, "\"a value\"")), absl::OkStatus());
}

TEST(ToolCallGrammarTest, StylesOfLiteralsSayWhatTheyCannotWrite) {
  const auto refused = [](ToolCalls::ArgumentStyle style, const std::string& members) {
    return Refused([&](ToolCalls& c) {
      c.set_argument_style(style);
      c.clear_before_name();
      c.clear_before_arguments();
      c.mutable_tools(0)->set_parameters(absl::StrCat(R"({"type": "object", )", members, "}"));
    });
  };
  const auto property = [](absl::string_view schema, absl::string_view name = "a") {
    return absl::StrCat(R"("properties": {")", name, "\": ", schema, "}");
  };
  constexpr char kUnsupported[] = "SCHEMA_UNSUPPORTED tools[0].parameters";
  for (const auto style : {ToolCalls::ARGUMENT_STYLE_PYTHON, ToolCalls::ARGUMENT_STYLE_GEMMA}) {
    const bool is_python = style == ToolCalls::ARGUMENT_STYLE_PYTHON;
    for (const char* const schema :
         {R"({"type": "string", "maxLength": 3})", R"({"type": "string", "pattern": "^a[é-ü]+$"})",
          R"({"enum": ["x", 1, null, [true, {"k 1": 2.5}]]})", R"({"type": ["string", "null"]})",
          "{}", R"({"$ref": "#"})", R"({"type": "array", "items": {"$ref": "#/$defs/d"}})",
          R"({"type": "integer", "minimum": -5, "exclusiveMaximum": 12})",
          R"({"type": "array", "prefixItems": [true], "items": {}, "maxItems": 3})",
          R"({"type": "object", "additionalProperties": {"type": "integer"}})",
          R"({"anyOf": [{"type": "string", "format": "ipv6"}, {"type": "integer"}]})"}) {
      EXPECT_EQ(refused(style, absl::StrCat(property(schema), R"(, "$defs": {"d": {"anyOf": [
          {"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/d"}}]}})")),
                "")
          << schema;
    }
    for (
        const char* const schema :
        {R"({"type": "integer", "minimum": 3, "maximum": 2})",
         R"({"type": "array", "items": true, "minItems": 1, "prefixItems": [{}, {}], "maxItems": 1})",
         R"({"type": "array", "minItems": 1})", R"({"type": "integer", "multipleOf": 2})"}) {
      EXPECT_EQ(refused(style, property(schema)), kUnsupported) << schema;
    }
    // Definitions that are one another, and nothing else.
    EXPECT_EQ(refused(style, property(R"({"$ref": "#/$defs/d"}}, "$defs": {
        "d": {"anyOf": [{"$ref": "#/$defs/e"}, {"type": "null"}]}, "e": {"$ref": "#/$defs/d"})")),
              kUnsupported);
    // Gemma's strings have no escapes; names of Python's arguments have no quotes.
    EXPECT_EQ(refused(style, property(R"({"const": "a<|\"|>"})")), is_python ? "" : kUnsupported);
    for (const char* const name : {"a b", "a=", "", "\\\""}) {
      EXPECT_EQ(refused(style, property("true", name)), is_python ? kUnsupported : "") << name;
    }
  }
}

TEST(ToolCallGrammarTest, SpecialTokensOfTheFormatGetTheirPrivateTexts) {
  const auto made = [](const ToolCalls& calls, absl::Span<const SpecialToken> special) {
    return MakeToolCallGrammar(ToolCallTexts(calls), special, /*max_whitespace=*/16).value();
  };
  const ToolCallGrammar plain = made(Good(), {});
  EXPECT_THAT(plain.special_tokens, ElementsAre());
  EXPECT_THAT(plain.structural_tag, HasSubstr("<calls>"));
  EXPECT_THAT(plain.structural_tag, Not(HasSubstr("\xff")));
  // The longest text counts, and a tool's name is no text of the format.
  const SpecialToken special[] = {
      {"<call", 3}, {"<calls>", 8}, {"f", 12}, {"</call>", 5}, {"x", 6}};
  const ToolCallGrammar made_special = made(Good(), special);
  EXPECT_THAT(made_special.special_tokens, ElementsAre(3, 5, 8));
  EXPECT_THAT(made_special.structural_tag, HasSubstr(PrivateText(8)));
  EXPECT_THAT(made_special.structural_tag, HasSubstr(absl::StrCat(PrivateText(3), ">f:")));
  EXPECT_THAT(made_special.structural_tag, HasSubstr("\"excludes\":[\"<calls>\""))
      << "the trigger in other tokens would begin calls, too";
  ToolCalls cut = Good();
  cut.set_trigger("<call");
  const absl::Status status =
      MakeToolCallGrammar(ToolCallTexts(cut), special, /*max_whitespace=*/16).status();
  EXPECT_EQ(ErrorReason(status), "SCHEMA_INVALID") << status;
  EXPECT_EQ(ErrorField(status), "structured_output.tool_calls.trigger") << status;
}

}  // namespace
}  // namespace baton::grammar
