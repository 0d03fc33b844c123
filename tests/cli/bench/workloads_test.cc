// `baton bench judge` and `baton bench agent` over a router with scripted workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/bench/agent.h"
#include "cli/bench/judge.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr auto kWorkloadLength = internal::v1::DecodeResponse::FINISH_LENGTH;

// Before any thread, as in main().
const ShutdownSignal workload_signals(BrokenPipe::kDefault);

class BenchWorkloadsTest : public ::testing::Test {
 protected:
  BenchWorkloadsTest() {
    judge_.target.address = agent_.target.address = cluster_.server().address();
    judge_.shape = {30, 10, true};
    judge_.verdicts = {"token", "text"};  // scripted prefill workers do not score
    judge_.items = 4;
    judge_.cold_items = 1;
    judge_.rounds = 2;
    judge_.verdict_tokens = 3;
    judge_.output.json = agent_.output.json = true;
    agent_.conversations.conversations = 3;
    agent_.conversations.turns = 3;
    agent_.conversations.tools_tokens = 20;
    agent_.conversations.user_tokens = 4;
    agent_.conversations.answer_tokens = 2;
    agent_.conversations.think_s = 0;
    agent_.conversations.seed = 5;
    cluster_.SetReply([this](DecodeCall call) { Answer(std::move(call)); });
  }

  void Answer(DecodeCall call) {
    const auto& tokens = call.request.tokens();
    {
      absl::MutexLock lock(&mutex_);
      prompts_.emplace_back(tokens.begin(), tokens.end());
    }
    if (on_call_) on_call_();
    if (fails_(call)) return call.Fail({grpc::StatusCode::DATA_LOSS, ""});  // not retried
    call.Finish(std::vector<int32_t>(call.request.max_tokens(), 'z'), kWorkloadLength);
  }

  nlohmann::json Judge(int expected = kExitOk) {
    std::ostringstream out, err;
    EXPECT_EQ(RunJudge(judge_, out, err), expected) << err.str();
    return nlohmann::json::parse(out.str());
  }
  nlohmann::json Agent(int expected = kExitOk) {
    std::ostringstream out, err;
    EXPECT_EQ(RunAgent(agent_, out, err), expected) << err.str();
    return nlohmann::json::parse(out.str());
  }

  absl::Mutex mutex_;
  std::vector<std::vector<int32_t>> prompts_;  // as they came; read when all is over
  std::function<bool(const DecodeCall&)> fails_ = [](const DecodeCall&) { return false; };
  std::function<void()> on_call_;
  JudgeOptions judge_;
  AgentOptions agent_;
  FakeCluster cluster_{1, 1,
                       [](router::Options* options) { options->http_listen = "127.0.0.1:0"; }};
};

TEST_F(BenchWorkloadsTest, AJudgeAndItsPeerGetTheSameItems) {
  judge_.peer = absl::StrCat("http://", cluster_.server().http_address(), "/");
  const auto json = Judge();
  // Of each round: an item and a rubric, a primer and four items; an item, a primer and four items.
  EXPECT_EQ(prompts_.size(), 2u * 2 * (2 + 5 + 1 + 5));
  std::map<std::vector<int32_t>, int> times;
  for (const auto& prompt : prompts_) ++times[prompt];
  int rubrics = 0;
  for (const auto& [prompt, count] : times) {
    EXPECT_EQ(count, 2) << "once for each server, by gRPC as a text and by HTTP as token ids";
    rubrics += prompt.size() == 30;
    EXPECT_TRUE(prompt.size() == 30 || prompt.size() == 40) << prompt.size();
  }
  EXPECT_EQ(rubrics, 2);
  EXPECT_EQ(json["peer"]["model_id"], json["model_id"]);
  EXPECT_TRUE(json["peer"]["version"].is_null());
  ASSERT_EQ(json["results"].size(), 10u);
  for (const auto& result : json["results"]) {
    const int of_round = result["prefix"] == "warm" ? 4 : 1;
    EXPECT_EQ(result["completed"], 2 * of_round) << result;
    EXPECT_EQ(result["failed"], 0);
    EXPECT_EQ(result["output_tokens"], 2 * of_round * (result["verdict"] == "text" ? 3 : 1));
    EXPECT_GT(result["items_per_s"].get<double>(), 0);
  }
  EXPECT_EQ(json["peer_to_baton"].size(), 4u);
  EXPECT_EQ(json["peer_to_baton"][0]["by_round"].size(), 2u);
}

TEST_F(BenchWorkloadsTest, AJudgeOfTokenIdsSavesAndPlots) {
  judge_.shape.texts = false;
  judge_.verdicts = {"text"};
  judge_.output.json = false;
  judge_.output.save_result = true;
  judge_.output.result_dir = ::testing::TempDir() + absl::StrCat("/judge-", getpid());
  judge_.output.result_filename = "r.json";
  judge_.output.plot = judge_.output.result_dir + "/plot.svg";
  fails_ = [](const DecodeCall& call) { return call.request.sampling().seed() == 2; };
  std::ostringstream out, err;
  EXPECT_EQ(RunJudge(judge_, out, err), kExitOk) << err.str();
  EXPECT_THAT(out.str(), ContainsRegex("baton +text +warm +6 +2 "));
  std::ifstream file(judge_.output.result_dir + "/r.json");
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["prompts"], "token_ids");
  EXPECT_EQ(json["results"].back()["failures"]["WORKER_FAILED"], 2) << json;
  EXPECT_TRUE(std::filesystem::exists(judge_.output.plot));
  std::filesystem::remove_all(judge_.output.result_dir);
}

TEST_F(BenchWorkloadsTest, WithoutAServerOrAnAnswerTheyFail) {
  fails_ = [](const DecodeCall&) { return true; };
  EXPECT_EQ(Judge(kExitFailure)["results"][0]["completed"], 0);
  EXPECT_EQ(Agent(kExitFailure)["results"][0]["turns_skipped"], 6);
  std::ostringstream out, err;
  judge_.peer = "http://127.0.0.1:1";
  EXPECT_EQ(RunJudge(judge_, out, err), kExitUnavailable);
  judge_.target.address = agent_.target.address = "127.0.0.1:1";
  EXPECT_EQ(RunJudge(judge_, out, err), kExitUnavailable);
  EXPECT_EQ(RunAgent(agent_, out, err), kExitUnavailable);
  EXPECT_THAT(err.str(), HasSubstr("baton bench agent: UNAVAILABLE: router at 127.0.0.1:1"));
}

TEST_F(BenchWorkloadsTest, EachTurnHasAllBeforeItAndTheAnswer) {
  const auto json = Agent();
  EXPECT_EQ(json["conversations"], 3);
  EXPECT_EQ(json["results"][0]["completed"], 9);
  const Conversations made =
      *MakeConversations(agent_.conversations, cluster_.tokenizer().vocab_size(), 0);
  for (const Conversation& conversation : made.conversations) {
    std::vector<int32_t> expected;
    auto place = prompts_.begin();
    for (const ConversationTurn& turn : conversation.turns) {
      expected.insert(expected.end(), turn.tokens.begin(), turn.tokens.end());
      place = std::find(place, prompts_.end(), expected);  // behind the turn before
      ASSERT_NE(place, prompts_.end()) << expected.size();
      expected.insert(expected.end(), 2, 'z');
    }
  }
  const auto& turns = json["results"][0]["turns"];
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns[2]["prompt_tokens"], 3 * (24 + 6 + 6));
  // The scripted workers have no cache.
  EXPECT_EQ(turns[2]["recomputed_tokens"], 3 * (24 + 6 + 2));
}

TEST_F(BenchWorkloadsTest, AFailedTurnEndsItsConversation) {
  std::atomic<int> calls{0};
  fails_ = [&](const DecodeCall& call) {
    return call.request.tokens_size() == 30 && calls++ == 0;  // a second turn
  };
  agent_.max_concurrency = 1;
  const auto json = Agent();
  const auto& result = json["results"][0];
  EXPECT_EQ(result["failed"], 1);
  EXPECT_EQ(result["turns_skipped"], 1);
  EXPECT_EQ(result["completed"], 7);
  // One after another, so the second and third found the tools known, and none of them cached.
  EXPECT_EQ(result["turns"][0]["recomputed_tokens"], 2 * 20);
}

TEST_F(BenchWorkloadsTest, CtrlCEndsThemWithWhatTheyHave) {
  std::atomic<int> calls{0};
  on_call_ = [&] {
    if (++calls == 3) kill(getpid(), SIGINT);
  };
  agent_.conversations.conversations = 1000;
  agent_.max_concurrency = 1;
  EXPECT_LT(Agent()["results"][0]["completed"], 3000);
  calls = 0;
  judge_.rounds = 1000;
  EXPECT_LT(Judge()["results"][0]["completed"], 1000);
}

}  // namespace
}  // namespace baton::cli
