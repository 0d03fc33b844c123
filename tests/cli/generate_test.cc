#include "cli/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;
using ::testing::HasSubstr;

class GenerateCommandTest : public ::testing::Test {
 protected:
  // Before the threads of the cluster, as in main().
  const ShutdownSignal signals_{BrokenPipe::kDefault};
  FakeCluster cluster_;
  GenerateOptions options_ = [this] {
    GenerateOptions options;
    options.address = cluster_.server().address();
    options.request.text = "hi";
    return options;
  }();
  std::ostringstream out_, err_;
};

TEST_F(GenerateCommandTest, PrintsTextOrJson) {
  cluster_.decode(0)->SetReply([](DecodeCall call) {
    call.SendTokens(Ids("good "));
    internal::v1::DecodeResponse drafted;
    drafted.mutable_usage()->set_draft_tokens(6);
    drafted.mutable_usage()->set_accepted_draft_tokens(2);
    call.stream->Send(drafted);
    call.Finish(Ids("day"), internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  EXPECT_EQ(RunGenerate(options_, out_, err_), 0);
  EXPECT_EQ(out_.str(), "good day\n");
  out_.str("");
  options_.stream = false;
  EXPECT_EQ(RunGenerate(options_, out_, err_), 0);
  EXPECT_EQ(out_.str(), "good day\n");
  out_.str("");
  options_.json = true;
  EXPECT_EQ(RunGenerate(options_, out_, err_), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["text"], "good day");
  EXPECT_EQ(json["token_ids"].size(), 8u);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(json["usage"]["draft_tokens"], 6);
  EXPECT_EQ(json["usage"]["accepted_draft_tokens"], 2);
  EXPECT_EQ(json["timings"]["prefill_ms"], 7);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(GenerateCommandTest, JsonHasChoicesAndLogprobs) {
  client::Completion completion;
  completion.choices.resize(2);
  completion.choices[1].text = "b";
  completion.choices[1].finish_reason = client::FinishReason::kStop;
  completion.choices[1].beam_score = -1.5;
  completion.choices[1].logprobs = {{98, -0.5f, {{97, -0.25f}, {98, -0.5f}}}};
  completion.prompt_logprobs = {{5, -2, {}}};
  const auto json = nlohmann::json::parse(ToJson(completion));
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][0]["logprobs"].size(), 0u);
  EXPECT_EQ(json["choices"][1]["text"], "b");
  EXPECT_EQ(json["choices"][1]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][1]["beam_score"], -1.5);
  EXPECT_EQ(json["choices"][1]["logprobs"][0]["token_id"], 98);
  EXPECT_EQ(json["choices"][1]["logprobs"][0]["top"][0]["logprob"], -0.25);
  EXPECT_EQ(json["prompt_logprobs"][0]["logprob"], -2);
}

TEST_F(GenerateCommandTest, PrintsTheReasonOfAWrongRequestOnStderr) {
  options_.request.max_tokens = 0;
  EXPECT_EQ(RunGenerate(options_, out_, err_), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("INVALID_ARGUMENT: --max-tokens: 0 given"));
  EXPECT_THAT(err_.str(), HasSubstr("[OUT_OF_RANGE]"));
}

TEST_F(GenerateCommandTest, ReportsARouterThatIsNotThere) {
  options_.address = "127.0.0.1:1";
  EXPECT_EQ(RunGenerate(options_, out_, err_), kExitUnavailable);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), HasSubstr("UNAVAILABLE: router at 127.0.0.1:1"));
}

TEST_F(GenerateCommandTest, ReportsADeadline) {
  options_.timeout_ms = 300;
  EXPECT_EQ(RunGenerate(options_, out_, err_), kExitDeadline);  // the fake worker does not answer
  EXPECT_THAT(err_.str(), HasSubstr("DEADLINE_EXCEEDED"));
}

TEST_F(GenerateCommandTest, CtrlCCancels) {
  std::thread user([&] {
    DecodeCall call = cluster_.decode(0)->AwaitDecode();
    kill(getpid(), SIGINT);
    EXPECT_TRUE(call.stream->AwaitCancelled());
  });
  EXPECT_EQ(RunGenerate(options_, out_, err_), kExitInterrupted);
  user.join();
  EXPECT_THAT(err_.str(), HasSubstr("CANCELLED"));
}

}  // namespace
}  // namespace baton::cli
