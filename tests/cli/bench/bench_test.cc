#include "cli/bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "cli/bench/words.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr auto kBenchLength = internal::v1::DecodeResponse::FINISH_LENGTH;

// Before any thread, as in main().
const ShutdownSignal signals(BrokenPipe::kDefault);

class BenchTest : public ::testing::Test {
 protected:
  BenchTest() {
    options_.target.address = cluster_.server().address();
    options_.target.base_url = absl::StrCat("http://", cluster_.server().http_address());
    options_.target.ignore_eos = true;
    options_.dataset.num_prompts = 10;
    options_.dataset.random_input_len = 20;
    options_.dataset.random_output_len = 3;
    options_.max_concurrency = 8;
    // The request with this seed fails; the others get a token, then two more.
    cluster_.decode(0)->SetReply([this](DecodeCall call) {
      ++sent_;
      if (call.request.sampling().seed() == 3) return call.Fail({grpc::StatusCode::INTERNAL, ""});
      call.SendTokens({'a'});
      call.Finish({'b', 'c'}, kBenchLength);
    });
  }

  nlohmann::json Run(int expected = kExitOk) {
    std::ostringstream out, err;
    options_.output.json = true;
    EXPECT_EQ(RunBench(options_, out, err), expected) << err.str();
    return nlohmann::json::parse(out.str());
  }

  FakeCluster cluster_{1, 1,
                       [](router::Options* options) { options->http_listen = "127.0.0.1:0"; }};
  std::atomic<int> sent_{0};
  BenchOptions options_;
};

TEST_F(BenchTest, ReportsAndSaves) {
  options_.output.save_result = true;
  options_.num_warmups = 2;
  options_.output.result_dir = ::testing::TempDir() + absl::StrCat("/bench-", getpid());
  options_.output.label = "mine";
  options_.output.plot = options_.output.result_dir + "/plot.svg";
  std::ostringstream out, err;
  EXPECT_EQ(RunBench(options_, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), ContainsRegex("Successful requests: +9 "));
  EXPECT_THAT(out.str(), ContainsRegex("Total generated tokens: +27 "));
  EXPECT_THAT(out.str(), ContainsRegex("WORKER_LOST: +1 "));
  int results = 0;
  for (const auto& file : std::filesystem::directory_iterator(options_.output.result_dir)) {
    if (file.path().extension() != ".json") continue;
    ++results;
    EXPECT_THAT(file.path().filename().string(),
                ContainsRegex("^mine-infqps-concurrency8-tiny-[0-9]{8}-[0-9]{6}\\.json$"));
    std::ifstream stream(file.path());
    EXPECT_EQ(nlohmann::json::parse(stream)["completed"], 9);
  }
  EXPECT_EQ(results, 1);
  EXPECT_TRUE(std::filesystem::exists(options_.output.plot));
  std::filesystem::remove_all(options_.output.result_dir);
}

TEST_F(BenchTest, MeasuresTheSameOverHttp) {
  options_.report.detailed = options_.target.keep_text = true;
  const auto over_grpc = Run();
  options_.target.backend = "openai";
  options_.vocab_size = cluster_.tokenizer().vocab_size();
  const auto over_http = Run();
  for (const char* key : {"completed", "failed", "total_input_tokens", "total_output_tokens",
                          "model_id", "output_lens", "generated_texts"}) {
    EXPECT_EQ(over_http[key], over_grpc[key]) << key;
  }
  EXPECT_EQ(over_http["output_lens"], nlohmann::json({3, 3, 3, 0, 3, 3, 3, 3, 3, 3}));
  EXPECT_EQ(over_http["itls"][0].size(), over_grpc["itls"][0].size());
  EXPECT_GT(over_http["mean_ttft_ms"], 0);
  EXPECT_THAT(over_http["errors"][3].get<std::string>(), HasSubstr("worker_lost"));
}

TEST_F(BenchTest, TextsOfAFileAreSentAsPromptsAndMessages) {
  options_.dataset.name = "custom";
  options_.dataset.path = ::testing::TempDir() + absl::StrCat("/texts-", getpid());
  std::ofstream(options_.dataset.path) << "{\"prompt\": \"hello\"}\n";
  options_.dataset.num_prompts = 2;
  options_.dataset.custom_output_len = 3;
  EXPECT_EQ(Run()["completed"], 2);
  options_.target.backend = "openai";
  EXPECT_EQ(Run()["completed"], 2);
  // The tiny model has no chat template, which the router reports by HTTP.
  options_.target.backend = "openai-chat";
  const auto refused = Run(kExitFailure);
  EXPECT_EQ(refused["failed"], 2);
  EXPECT_EQ(refused["failures"]["NO_CHAT_TEMPLATE"], 2) << refused["failures"];
}

// Over a model that has a chat template.
TEST(BenchChatTest, RandomPromptsAreMessagesOfWords) {
  const std::string dir = ::testing::TempDir() + absl::StrCat("/chat-", getpid());
  testing::WriteTinyTokenizer(dir);
  std::ofstream(dir + "/chat_template.jinja")
      << "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  FakeCluster cluster{1, 1, [&](router::Options* options) {
                        options->http_listen = "127.0.0.1:0";
                        options->model_dir = dir;
                      }};
  absl::Mutex mutex;
  std::vector<std::string> prompts;
  cluster.decode(0)->SetReply([&](DecodeCall call) {
    std::string prompt;
    for (const int32_t id : call.request.tokens()) prompt += static_cast<char>(id);
    {
      absl::MutexLock lock(&mutex);
      prompts.push_back(prompt);
    }
    call.Finish({'b', 'c'}, kBenchLength);
  });
  BenchOptions options;
  options.target.backend = "openai-chat";
  options.target.base_url = absl::StrCat("http://", cluster.server().http_address());
  options.target.ignore_eos = true;
  options.dataset.num_prompts = 3;
  options.dataset.random_prefix_len = 2;
  options.dataset.random_input_len = 5;
  options.dataset.random_output_len = 2;
  options.output.json = true;
  std::ostringstream out, err;
  ASSERT_EQ(RunBench(options, out, err), kExitOk) << err.str();
  const auto result = nlohmann::json::parse(out.str());
  EXPECT_EQ(result["completed"], 3);
  EXPECT_EQ(result["total_output_tokens"], 6);
  int64_t characters = 0;
  for (const std::string& prompt : prompts) {
    EXPECT_THAT(prompt, ::testing::StartsWith("<user>"));
    const std::vector<std::string> words = absl::StrSplit(prompt.substr(6), ' ');
    EXPECT_EQ(words.size(), 7u) << prompt;
    for (const std::string& word : words) EXPECT_THAT(CommonWords(), ::testing::Contains(word));
    characters += static_cast<int64_t>(prompt.size());
  }
  // As the server counts them: here, a token is a character.
  EXPECT_EQ(result["total_input_tokens"], characters);
  std::filesystem::remove_all(dir);
}

TEST_F(BenchTest, ATraceIsSentAtItsTimes) {
  options_.dataset.name = "trace";
  options_.dataset.path = ::testing::TempDir() + absl::StrCat("/trace-", getpid());
  std::ofstream(options_.dataset.path)
      << "{\"timestamp\": 7, \"input_length\": 9, \"output_length\": 3}\n"
      << "{\"timestamp\": 57, \"input_length\": 5, \"output_length\": 3}\n";
  options_.report.detailed = true;
  const auto result = Run();
  EXPECT_EQ(result["input_lens"], nlohmann::json({9, 5}));
  EXPECT_GE(result["start_times"][1].get<double>(), 0.05);
}

TEST_F(BenchTest, FailsWithoutAServer) {
  std::ostringstream out, err;
  options_.target.address = "127.0.0.1:1";
  EXPECT_EQ(RunBench(options_, out, err), kExitUnavailable);
  EXPECT_THAT(err.str(), HasSubstr("UNAVAILABLE"));
  options_.target.backend = "openai";
  EXPECT_EQ(RunBench(options_, out, err), kExitUsage);
  EXPECT_THAT(err.str(), HasSubstr("--vocab-size"));
  options_.target.base_url = "http://127.0.0.1:1";
  EXPECT_EQ(RunBench(options_, out, err), kExitUnavailable);
}

TEST_F(BenchTest, CtrlCLeavesNoRequestThatWasNeverSentInTheReport) {
  cluster_.decode(0)->SetReply([this](DecodeCall call) {
    if (++sent_ == 20) kill(getpid(), SIGINT);
    call.Finish({'b', 'c'}, kBenchLength);
  });
  options_.dataset.num_prompts = 100'000;
  options_.dataset.random_output_len = 2;
  const auto result = Run();
  EXPECT_EQ(result["completed"], sent_.load());
  EXPECT_LT(sent_, 100'000);
  EXPECT_EQ(result["failed"], 0);
}

}  // namespace
}  // namespace baton::cli
