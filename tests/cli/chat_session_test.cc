#include "cli/chat_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/base/exit_code.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;
using ::testing::HasSubstr;

class ScriptedLines final : public LineReader {
 public:
  explicit ScriptedLines(std::deque<std::string> lines) : lines_(std::move(lines)) {}
  InputLine Read(const char*) override {
    if (lines_.empty()) return {InputLine::Kind::kEnd, ""};
    InputLine line = {InputLine::Kind::kText, std::move(lines_.front())};
    lines_.pop_front();
    return line;
  }

 private:
  std::deque<std::string> lines_;
};

class ChatSessionTest : public ::testing::Test {
 protected:
  // Answers with "good day" and remembers the prompts.
  void AnswerAll() {
    cluster_.decode(0)->SetReply([this](DecodeCall call) {
      prompts_.emplace_back(call.request.tokens().begin(), call.request.tokens().end());
      temperature_ = call.request.sampling().temperature();
      call.SendTokens(Ids("good "));
      call.Finish(Ids("day"), internal::v1::DecodeResponse::FINISH_LENGTH);
    });
  }
  int Run(std::deque<std::string> lines, bool terminal = false, const std::string& system = "") {
    ScriptedLines reader(std::move(lines));
    return ChatSession(*client_, {}, system, {reader, out_, err_, terminal}).Run();
  }
  std::string File(const std::string& name) { return ::testing::TempDir() + "/" + name; }

  // Before the threads of the cluster, as in main().
  const ShutdownSignal signals_{BrokenPipe::kDefault};
  FakeCluster cluster_{1, 1, [](router::Options* options) {
                         options->model_dir = ::testing::TempDir() + "/chat_session";
                         baton::testing::WriteTinyTokenizer(options->model_dir);
                         std::ofstream(options->model_dir + "/chat_template.jinja")
                             << "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}"
                                "{% endfor %}<a>";
                       }};
  std::unique_ptr<client::Client> client_ = *client::Client::Create(cluster_.server().address());
  std::vector<std::string> prompts_;  // of AnswerAll, one at a time
  float temperature_ = -1;
  std::atomic<int> out_shown_{0};
  std::ostringstream out_, err_;
};

TEST_F(ChatSessionTest, TurnsAddUp) {
  AnswerAll();
  EXPECT_EQ(Run({"hi", "", "more\\", "lines", "//x", "\"\"\"/y\"\"\""}, false, "Be kind."),
            kExitOk);
  EXPECT_EQ(out_.str(), "good day\ngood day\ngood day\ngood day\n");
  EXPECT_EQ(err_.str(), "");
  EXPECT_THAT(prompts_,
              ::testing::ElementsAre(
                  "<s>Be kind.<u>hi<a>", "<s>Be kind.<u>hi<a>good day<u>more\nlines<a>",
                  "<s>Be kind.<u>hi<a>good day<u>more\nlines<a>good day<u>/x<a>",
                  "<s>Be kind.<u>hi<a>good day<u>more\nlines<a>good day<u>/x<a>good day<u>/y<a>"));
}

TEST_F(ChatSessionTest, SystemClearSetAndModel) {
  AnswerAll();
  EXPECT_EQ(Run({"/set temperature 0.5", "/system  Be brief. ", "a", "/clear", "/system", "b",
                 "/set temperature default", "/set", "/model", "/help", "/exit", "c"}),
            kExitOk);
  EXPECT_THAT(prompts_, ::testing::ElementsAre("<s>Be brief.<u>a<a>", "<u>b<a>"));
  EXPECT_EQ(temperature_, 0.5f);
  EXPECT_THAT(out_.str(), HasSubstr("temperature default\n"));
  EXPECT_THAT(out_.str(), HasSubstr("chat_session, context of 128 tokens\n"));
  EXPECT_THAT(out_.str(), HasSubstr("/load FILE"));
}

TEST_F(ChatSessionTest, SaveAndLoad) {
  AnswerAll();
  const std::string file = File("saved.json");
  EXPECT_EQ(Run({"\"\"\"a \"quoted\" \"\"\"", "/save " + file}, false, "Be kind."), kExitOk);
  prompts_.clear();
  EXPECT_EQ(Run({"/load " + file, "b"}, false, "dropped"), kExitOk) << err_.str();
  EXPECT_THAT(prompts_, ::testing::ElementsAre("<s>Be kind.<u>a \"quoted\" <a>good day<u>b<a>"));
}

TEST_F(ChatSessionTest, AConversationThatIsNone) {
  for (const char* json :
       {"", "{}", "[", "[1]", R"([{"role": "user"}])", R"([{"role": "user", "content": 1}])",
        R"([{"role": "user", "content": "a", "name": "x"}])"}) {
    EXPECT_EQ(ParseConversation(json).status().code(), absl::StatusCode::kInvalidArgument) << json;
  }
  EXPECT_EQ(ParseConversation(ConversationJson({{"user", "\xff"}}))->at(0).role, "user");
}

TEST_F(ChatSessionTest, FiguresHaveDraftsIfThereWereAny) {
  int drafts = 0;
  cluster_.decode(0)->SetReply([&drafts](DecodeCall call) {
    internal::v1::DecodeResponse drafted;
    drafted.mutable_usage()->set_draft_tokens(drafts);
    drafted.mutable_usage()->set_accepted_draft_tokens(std::exchange(drafts, 9) / 2);
    call.stream->Send(drafted);
    call.Finish(Ids("day"), internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  EXPECT_EQ(Run({"hi"}, /*terminal=*/true), kExitOk);
  EXPECT_THAT(out_.str(), Not(HasSubstr("drafts")));
  EXPECT_EQ(Run({"hi"}, /*terminal=*/true), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr(", 4 of 9 drafts accepted]\n"));
}

// A script ends at its first error, with its exit code; a person goes on.
TEST_F(ChatSessionTest, Errors) {
  AnswerAll();
  for (const char* wrong :
       {"/nothing", "/set temperature hot", "/set heat 1", "/save", "/load /no/such/file"}) {
    out_.str("");
    err_.str("");
    const int code = Run({wrong, "hi"});
    EXPECT_EQ(code, std::string(wrong) == "/load /no/such/file" ? kExitFailure : kExitUsage)
        << wrong;
    EXPECT_EQ(out_.str(), "") << wrong;
    EXPECT_THAT(err_.str(), HasSubstr("baton chat: ")) << wrong;
  }
  out_.str("");
  EXPECT_EQ(Run({"/set temperature 3", "hi", "/set temperature 1", "ho"}, /*terminal=*/true),
            kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("good day\n[8 tokens, "));
  EXPECT_THAT(err_.str(), HasSubstr("INVALID_ARGUMENT: temperature: "));
  EXPECT_EQ(prompts_.back(), "<u>ho<a>") << "a message that failed is dropped";
}

TEST_F(ChatSessionTest, CtrlCKeepsWhatHasArrived) {
  for (const bool terminal : {true, false}) {
    out_.str("");
    cluster_.decode(0)->SetReply(nullptr);
    std::thread user([&] {
      DecodeCall call = cluster_.decode(0)->AwaitDecode();
      AnswerAll();  // from now on
      call.SendTokens(Ids("good"));
      while (out_shown_.load() == 0) std::this_thread::yield();
      kill(getpid(), SIGINT);
      EXPECT_TRUE(call.stream->AwaitCancelled());
    });
    struct Watched final : std::stringbuf {  // says when the first text is shown
      explicit Watched(std::atomic<int>* shown) : shown_(shown) {}
      int sync() override {
        if (str().find("good") != std::string::npos) *shown_ = 1;
        return 0;
      }
      std::atomic<int>* shown_;
    } buffer(&out_shown_);
    out_shown_ = 0;
    std::ostream out(&buffer);
    ScriptedLines reader({"hi", "go on"});
    const int code = ChatSession(*client_, {}, "", {reader, out, err_, terminal}).Run();
    user.join();
    EXPECT_EQ(code, terminal ? kExitOk : kExitInterrupted);
    if (!terminal) continue;
    EXPECT_THAT(buffer.str(), HasSubstr("good\n[cancelled]\n"));
    EXPECT_EQ(prompts_.back(), "<u>hi<a>good<u>go on<a>");
  }
}

TEST(ForTerminalTest, ShowsControlCharacters) {
  EXPECT_EQ(ForTerminal("a\tb\r\nc\x1b[31m\x7f\x01"), "a\tb\nc^[[31m^?^A");
  EXPECT_EQ(ForTerminal("\xc2\x9b"
                        "31m \xc3\xa9 \xc2\xa9"),
            "31m \xc3\xa9 \xc2\xa9");
}

}  // namespace
}  // namespace baton::cli
