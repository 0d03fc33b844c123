#include "router/request/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/error.h"
#include "tests/router/call_harness.h"

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
      {Messages({{"poet", "a"}}), "CHAT_TEMPLATE_REFUSED", "messages"},
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

// Special tokens are the template's, unless the request wants them.
TEST_F(ChatPromptTest, SpecialTokens) {
  SetTemplate(kTemplate);
  Begin();
  for (const std::optional<bool> wanted : {std::optional<bool>(), std::optional(true)}) {
    v1::GenerateRequest request = Messages({{"user", "hi"}});
    if (wanted) request.set_add_special_tokens(*wanted);
    ASSERT_TRUE(RenderMessages(parts(), &request).ok());
    EXPECT_EQ(request.text(), "<user>hi<assistant>");
    EXPECT_TRUE(request.has_add_special_tokens());
    EXPECT_EQ(request.add_special_tokens(), wanted.value_or(false));
  }
}

}  // namespace
}  // namespace baton::router
