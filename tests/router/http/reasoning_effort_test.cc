#include "router/http/reasoning_effort.h"

#include <gtest/gtest.h>

#include <string>

#include "common/json/json.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

// The template's variables for an effort, as JSON; "ignored" if the effort has no effect.
std::string Variables(const std::string& chat_template, const std::string& effort,
                      const std::string& given = "null") {
  const testing::ModelDir dir;
  dir.Write("chat_template.jinja", chat_template);
  const auto chat = chat::ModelChat::Load(dir.path());
  EXPECT_TRUE(chat.ok()) << chat.status();
  OpenAiRequest request;
  request.reasoning_effort = effort;
  request.conversation.variables = json::Parse(given, "given").value();
  ApplyReasoningEffort(*chat, &request);
  if (!request.ignored.empty()) {
    EXPECT_EQ(request.ignored, std::vector<std::string>{"reasoning_effort"});
    EXPECT_EQ(json::ToText(request.conversation.variables),
              json::ToText(json::Parse(given, "given").value()));
    return "ignored";
  }
  return json::ToText(request.conversation.variables);
}

TEST(ReasoningEffortTest, SetsTheVariablesThatTheTemplateReads) {
  EXPECT_EQ(Variables("{{ reasoning_effort }}", "high"), R"({"reasoning_effort":"high"})");
  EXPECT_EQ(Variables("{{ reasoning_effort }}", "none"), R"({"reasoning_effort":"none"})");
  EXPECT_EQ(Variables("{{ enable_thinking }}", "minimal"), R"({"enable_thinking":true})");
  EXPECT_EQ(Variables("{{ thinking }}", "none"), R"({"thinking":false})");
  EXPECT_EQ(Variables("{{ thinking }}{{ enable_thinking }}{{ reasoning_effort }}", "low"),
            R"({"reasoning_effort":"low","enable_thinking":true,"thinking":true})");
  EXPECT_EQ(Variables("{{ messages[0].thinking }}", "low"), "ignored");
  EXPECT_EQ(Variables("{% set thinking = 1 %}{{ thinking }}", "low"), "ignored");
  EXPECT_EQ(Variables("{{ x }}", "low", R"({"x":1})"), "ignored");
  EXPECT_EQ(Variables("{{ thinking }}", ""), "null");
}

TEST(ReasoningEffortTest, TheRequestsOwnVariablesStay) {
  EXPECT_EQ(Variables("{{ thinking }}", "low", R"({"x":1})"), R"({"x":1,"thinking":true})");
  EXPECT_EQ(Variables("{{ thinking }}", "low", R"({"thinking":false})"), R"({"thinking":false})");
  EXPECT_EQ(
      Variables("{{ thinking }}{{ reasoning_effort }}", "low", R"({"enable_thinking":false})"),
      R"({"enable_thinking":false,"reasoning_effort":"low"})");
  EXPECT_EQ(
      Variables("{{ thinking }}{{ reasoning_effort }}", "low", R"({"reasoning_effort":"max"})"),
      R"({"reasoning_effort":"max","thinking":true})");
}

}  // namespace
}  // namespace baton::router
