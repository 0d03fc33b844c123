#include "cli/prefix_lint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> KindsIn(const std::string& text) {
  std::vector<std::string> kinds;
  for (const LintFinding& f : LintPrefixes({{"f", text}})) kinds.push_back(f.kind + "=" + f.text);
  return kinds;
}

TEST(PrefixLintTest, Timestamps) {
  for (const char* text :
       {"2026-11-23", "2026-11-23T10:15", "2026-11-23 10:15:00.123+01:00", "2026-11-23T10:15:00Z",
        "11/23/2026", "23.11.2026", "23 November 2026", "Nov 3, 2026", "December 1st 2026",
        "10:15:00", "9:05 pm", "1795428556", "1795428556123"}) {
    EXPECT_THAT(KindsIn(std::string("Now is ") + text + ", and so on."),
                ElementsAre(std::string("timestamp=") + text));
  }
}

TEST(PrefixLintTest, Ids) {
  EXPECT_THAT(KindsIn("user 123e4567-e89b-12d3-a456-426614174000 asks"),
              ElementsAre("uuid=123e4567-e89b-12d3-a456-426614174000"));
  EXPECT_THAT(KindsIn("build 9f86d081884c7d659a2feaa0c55ad015 is"),
              ElementsAre("hex=9f86d081884c7d659a2feaa0c55ad015"));
  EXPECT_THAT(KindsIn("Request-ID: abc-123"), ElementsAre("request_id=Request-ID: abc-123"));
  EXPECT_THAT(KindsIn("{\"trace_id\": \"77aa12\"}"),
              ElementsAre("request_id=trace_id\": \"77aa12"));
  EXPECT_THAT(KindsIn("as in chatcmpl-9aBcDeFgH1 before"),
              ElementsAre("request_id=chatcmpl-9aBcDeFgH1"));
}

TEST(PrefixLintTest, Counters) {
  EXPECT_THAT(KindsIn("This is request #4711 of today"), ElementsAre("counter=request #4711"));
  EXPECT_THAT(KindsIn("Turn number: 3"), ElementsAre("counter=Turn number: 3"));
  EXPECT_THAT(KindsIn("{\"seq\": 12}"), ElementsAre("counter=\"seq\": 12"));
}

TEST(PrefixLintTest, StableTextHasNoFindings) {
  EXPECT_THAT(KindsIn("You are a careful reviewer.\n"
                      "1. Read the text in 3 to 5 passes; 2. score it from 0 to 100.\n"
                      "Use Python 3.11.4, port 8080, a ratio of 16:9 and version 2.10.\n"
                      "Answer as JSON: {\"score\": 7, \"reason\": \"...\"}. In 2026 too.\n"
                      "The message has a session; call the number 5. Deadbeefcafe is a word.\n"),
              IsEmpty());
}

TEST(PrefixLintTest, PlacesAreInLinesAndCharacters) {
  const std::vector<LintFinding> findings =
      LintPrefixes({{"a", "Größe\nüü 2026-11-23 und 10:15:00\n"}});
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].line, 2);
  EXPECT_EQ(findings[0].column, 4);
  EXPECT_EQ(findings[1].column, 19);
  EXPECT_EQ(findings[1].text, "10:15:00");
  EXPECT_FALSE(findings[0].suggestion.empty());
}

TEST(PrefixLintTest, KeysInAnotherOrderAcrossFiles) {
  const std::vector<LintFinding> findings = LintPrefixes(
      {{"a", "Tools:\n{\"name\": \"x\", \"args\": {\"p\": 1, \"q\": 2}}\n"},
       {"b", "Tools:\n\n  {\"name\": \"y\", \"args\": {\"q\": 1, \"p\": [{\"z\": 1}]}}\n"},
       {"c", "{\"name\": \"x\", \"args\": {\"p\": 1, \"q\": 2}}"}});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, "json_key_order");
  EXPECT_EQ(findings[0].file, "b");
  EXPECT_EQ(findings[0].line, 3);
  EXPECT_EQ(findings[0].column, 3);
  EXPECT_EQ(findings[0].text, "q, p");
  EXPECT_THAT(findings[0].suggestion, HasSubstr("a:2 has p, q"));
}

TEST(PrefixLintTest, WhatIsNoJsonIsPassedOver) {
  EXPECT_THAT(KindsIn("{{ template }} { \"open\": 1 and {a: b} }"), IsEmpty());
  EXPECT_THAT(LintPrefixes({{"a", "{\"a\": 1, \"b\": \"}{\"} x"}, {"b", "{ {\"b\": 1, \"a\": 2}"}}),
              ::testing::SizeIs(1));
}

TEST(PrefixLintTest, LongLinesOfOneKindOfCharacter) {
  for (const char c : {'a', '0', '1', '{', '"', '-', ' '}) {
    LintPrefixes({{"f", std::string(20'000, c)}});  // ends
  }
}

TEST(PrefixLintTest, TheCommandPrintsAndReports) {
  const std::string stable = ::testing::TempDir() + "prefix_lint_stable";
  const std::string changing = ::testing::TempDir() + "prefix_lint_changing";
  std::ofstream(stable) << "Be brief.\n";
  std::ofstream(changing) << "Be brief.\nIt is 2026-11-23.\n";
  std::ostringstream out, err;
  EXPECT_EQ(RunPrefixLint({stable}, false, out, err), 0);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(RunPrefixLint({stable, changing}, false, out, err), 1);
  EXPECT_THAT(out.str(), HasSubstr(changing + ":2:7: timestamp: 2026-11-23: move it"));
  out.str("");
  EXPECT_EQ(RunPrefixLint({changing}, true, out, err), 1);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["findings"][0]["line"], 2);
  EXPECT_EQ(json["findings"][0]["kind"], "timestamp");
  EXPECT_EQ(err.str(), "");
  EXPECT_EQ(RunPrefixLint({stable, "/nonexistent"}, true, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr("/nonexistent cannot be read"));
}

}  // namespace
}  // namespace baton::cli
