#include "router/request/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "tests/router/call_harness.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using ::baton::testing::CallHarness;
using ::baton::testing::FakeSink;

class ChatPromptTest : public CallHarness {
 protected:
  ChatPromptTest() { options_.max_prompt_bytes = 200; }
  void SetTemplate(const std::string& source) {
    const std::string dir = ::testing::TempDir() + "/chat_prompt";
    std::filesystem::create_directories(dir);
    std::ofstream(dir + "/chat_template.jinja") << source;
    auto chat = chat::ModelChat::Load(dir);
    ASSERT_TRUE(chat.ok()) << chat.status();
    chat_ = *std::move(chat);
  }
  v1::GenerateRequest Messages(const std::vector<std::pair<std::string, std::string>>& messages) {
    v1::GenerateRequest request;
    request.mutable_messages();
    for (const auto& [role, content] : messages) {
      v1::ChatMessage* message = request.mutable_messages()->add_messages();
      message->set_role(role);
      message->set_content(content);
    }
    return request;
  }
  absl::Status ErrorOf(const v1::GenerateRequest& request) { return Start(request).End(); }
  // The text of the prompt's tokens.
  std::string PromptOf(const v1::GenerateRequest& request) {
    EXPECT_TRUE(request.has_token_ids());
    return *parts().tokenizer.Decode(request.token_ids().ids(), /*skip_special_tokens=*/false);
  }
  // The prompt of messages, with ^ for its special token.
  std::string Prompt(v1::GenerateRequest request) {
    const auto dropped = RenderMessages(parts(), {}, &request);
    if (!dropped.ok()) return dropped.status().ToString();
    std::string prompt;
    for (const int32_t id : request.token_ids().ids()) {
      prompt += id == testing::kEndToken ? '^' : static_cast<char>(id);
    }
    return prompt;
  }
};

constexpr char kTemplate[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

TEST_F(ChatPromptTest, TheWorkerGetsWhatTheTemplateWrites) {
  SetTemplate(kTemplate);
  FakeSink& sink = Start(Messages({{"system", "Be kind."}, {"user", "hi"}}));
  EXPECT_EQ(network_.stream(0).Tokens(), "<system>Be kind.<user>hi<assistant>");
  network_.stream(0).Finish("ok");
  EXPECT_TRUE(sink.End().ok());
  EXPECT_EQ(sink.choice().text(), "ok");
}

TEST_F(ChatPromptTest, WrongMessages) {
  SetTemplate("{{ raise_exception('no ' ~ messages[0].role) }}");
  const std::string long_text(150, 'x');
  const struct {
    v1::GenerateRequest request;
    const char* reason;
    const char* field;
  } cases[] = {
      {Messages({}), "EMPTY_PROMPT", "messages"},
      {Messages({{"user", "a"}, {"", "b"}}), "MISSING_FIELD", "messages[1].role"},
      {Messages({{"user", long_text}, {"user", long_text}}), "PROMPT_TOO_LONG", "messages"},
      {Messages(std::vector<std::pair<std::string, std::string>>(4097, {"u", ""})), "OUT_OF_RANGE",
       "messages"},
      {Messages({{"user", "a"}}), "CHAT_TEMPLATE_REFUSED", "messages"},
      {Messages({{"user", "a"}, {"poet", "b"}}), "UNKNOWN_ROLE", "messages[1].role"},
  };
  for (const auto& [request, reason, field] : cases) {
    const absl::Status error = ErrorOf(request);
    EXPECT_EQ(ErrorReason(error), reason) << error;
    EXPECT_EQ(ErrorField(error), field) << error;
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ChatPromptTest, ATextThatIsTooLongAfterItsTemplate) {
  SetTemplate("{{ messages[0].content * 50 }}");
  EXPECT_EQ(ErrorReason(ErrorOf(Messages({{"user", "hello"}}))), "CHAT_TEMPLATE_LIMIT");
}

TEST_F(ChatPromptTest, WithoutATemplate) {
  const absl::Status error = ErrorOf(Messages({{"user", "hi"}}));
  EXPECT_EQ(ErrorReason(error), "NO_CHAT_TEMPLATE") << error;
  EXPECT_EQ(ErrorField(error), "messages");
}

// Room for 108 tokens, each a byte, of which 27 are always there; a turn has 25, a step 65.
TEST_F(ChatPromptTest, TruncationDropsTheOldestTurnsInSteps) {
  options_.max_prompt_bytes = 1 << 20;
  SetTemplate(kTemplate);
  Begin();
  std::vector<std::pair<std::string, std::string>> turns = {{"system", "Be kind."}};
  std::string last_first;
  int changes = 0;
  for (int turn = 0; turn < 40; ++turn) {
    turns.emplace_back("user", absl::StrCat("q", 100 + turn));
    v1::GenerateRequest request = Messages(turns);
    request.mutable_stop()->set_max_tokens(20);
    if (turn == 39) {
      const absl::Status whole = RenderMessages(parts(), {}, &request).status();
      EXPECT_EQ(ErrorReason(whole), "PROMPT_TOO_LONG") << "without truncation";
      EXPECT_EQ(ErrorField(whole), "messages");
      request = Messages(turns);
      request.mutable_stop()->set_max_tokens(20);
    }
    request.mutable_truncation()->set_retention_ratio(0.4f);
    const auto dropped = RenderMessages(parts(), {}, &request);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    EXPECT_FALSE(request.has_truncation());
    const std::string prompt = PromptOf(request);
    EXPECT_LE(prompt.size(), 108u);
    EXPECT_EQ(prompt.rfind("<system>Be kind.<user>q1", 0), 0u) << prompt;
    EXPECT_NE(prompt.find(absl::StrCat("q", 100 + turn, "<assistant>")), std::string::npos);
    int64_t whole = 0;
    for (const auto& [role, content] : turns) {
      whole += static_cast<int64_t>(role.size() + content.size()) + 2;
    }
    EXPECT_EQ(*dropped, whole + 11 - static_cast<int64_t>(prompt.size()));
    const std::string first = prompt.substr(16, 10);
    changes += first == last_first ? 0 : 1;
    last_first = first;
    turns.emplace_back("assistant", absl::StrCat("a", 100 + turn));
  }
  EXPECT_GE(changes, 12);
  EXPECT_LE(changes, 20) << "several turns begin alike";
}

TEST_F(ChatPromptTest, TruncationKeepsTheLastMessageAndTheSystemMessage) {
  SetTemplate(kTemplate);
  Begin();
  v1::GenerateRequest request =
      Messages({{"system", std::string(60, 's')}, {"user", std::string(60, 'u')}});
  request.mutable_truncation();
  EXPECT_EQ(ErrorReason(RenderMessages(parts(), {}, &request).status()), "PROMPT_TOO_LONG");
}

constexpr char kEndings[] =
    "{# takes the role '<|end|>', too #}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<|end|>{% endfor %}";

// A special token that a content spells is text, unless the request or the router's flag says
// otherwise.
TEST_F(ChatPromptTest, ContentsSpellNoSpecialTokens) {
  SetTemplate(kEndings);
  Begin();
  v1::GenerateRequest request =
      Messages({{"user", "<|end|><system> a<|end"}, {"assistant", "|>"}, {"<|end|>", "b"}});
  const std::string text = "<user><|end|><system> a<|end^<assistant>|>^<<|end|>>b^";
  const std::string special = "<user>^<system> a<|end^<assistant>|>^<^>b^";
  EXPECT_EQ(Prompt(request), text);
  request.set_split_special_tokens(false);
  EXPECT_EQ(Prompt(request), special);
  options_.split_special_tokens = false;
  EXPECT_EQ(Prompt(request), special);
  request.set_split_special_tokens(true);
  EXPECT_EQ(Prompt(request), text);
  request.clear_split_special_tokens();
  EXPECT_EQ(Prompt(request), special);
}

TEST_F(ChatPromptTest, TruncatedMessagesSpellNoSpecialTokensEither) {
  SetTemplate(kEndings);
  Begin();
  v1::GenerateRequest request =
      Messages({{"user", std::string(100, 'a')}, {"user", "<|end|>"}, {"user", "<|end|>b"}});
  request.mutable_truncation()->set_retention_ratio(0.5f);
  request.mutable_stop()->set_max_tokens(20);
  EXPECT_EQ(Prompt(request), "<user><|end|>^<user><|end|>b^");
}

TEST_F(ChatPromptTest, APromptWithoutTokens) {
  SetTemplate("{{ messages[0].content }}");
  const absl::Status error = ErrorOf(Messages({{"user", ""}}));
  EXPECT_EQ(ErrorReason(error), "EMPTY_PROMPT") << error;
  EXPECT_EQ(ErrorField(error), "messages");
}

}  // namespace
}  // namespace baton::router
