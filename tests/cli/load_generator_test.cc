#include "cli/load_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::SizeIs;

constexpr auto kLength = internal::v1::DecodeResponse::FINISH_LENGTH;

LoadRequest Request(int max_tokens, bool return_token_ids = true) {
  LoadRequest load;
  for (int32_t id : {'x', 'y'}) load.request.mutable_token_ids()->add_ids(id);
  load.request.mutable_stop()->set_max_tokens(max_tokens);
  load.request.mutable_stop()->set_ignore_eos(true);
  load.request.set_return_token_ids(return_token_ids);
  load.kind = 10 + max_tokens;
  return load;
}

class LoadGeneratorTest : public ::testing::Test {
 protected:
  // As many tokens as asked for, the first in a separate message.
  LoadGeneratorTest() {
    cluster_.SetReply([](DecodeCall call) {
      call.SendTokens({'a'});
      call.Finish(std::vector<int32_t>(call.request.max_tokens() - 1, 'b'), kLength);
    });
  }

  FakeCluster cluster_;
  LoadGenerator generator_{std::vector{cluster_.server().address()}};
};

TEST_F(LoadGeneratorTest, RecordsEachToken) {
  for (const bool return_token_ids : {true, false}) {
    const Outcome outcome = generator_.SendAndWait(Request(3, return_token_ids));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.finish, v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(outcome.kind, 13);
    EXPECT_EQ(outcome.max_tokens, 3);
    EXPECT_EQ(outcome.usage.prompt_tokens(), 2);
    ASSERT_THAT(outcome.token_s, SizeIs(3));
    EXPECT_THAT(outcome.tokens, SizeIs(return_token_ids ? 3 : 0));
    EXPECT_LE(outcome.sent_s, outcome.token_s.front());
    EXPECT_EQ(outcome.token_s[1], outcome.token_s[2]) << "of one message";
    EXPECT_LE(outcome.token_s.back(), outcome.ended_s);
  }
  EXPECT_EQ(generator_.GetModel()->id(), "tiny");
}

TEST_F(LoadGeneratorTest, CancelsAtATokenAndBeforeTheStart) {
  // It never ends by itself.
  cluster_.SetReply([](DecodeCall call) { call.SendTokens({'a'}); });
  LoadRequest request = Request(3);
  request.on_tokens = [](int tokens) { return tokens < 1; };
  const Outcome outcome = generator_.SendAndWait(request);
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;
  EXPECT_THAT(outcome.tokens, ElementsAre('a'));

  request = Request(3);
  request.context = std::make_shared<grpc::ClientContext>();
  request.context->TryCancel();
  EXPECT_TRUE(absl::IsCancelled(generator_.SendAndWait(request).status));
}

TEST_F(LoadGeneratorTest, EachLoopSendsAllAndNamesReasons) {
  cluster_.SetReply([](DecodeCall call) {
    if (call.request.max_tokens() == 4) return call.Fail({grpc::StatusCode::INTERNAL, ""});
    call.Finish(std::vector<int32_t>(call.request.max_tokens(), 'b'), kLength);
  });
  std::vector<LoadRequest> requests;
  for (int tokens = 1; tokens <= 6; ++tokens) requests.push_back(Request(tokens));
  const std::vector<Outcome> at_once = generator_.SendAll(requests);
  ASSERT_THAT(at_once, SizeIs(6));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(at_once[i].kind, 11 + i);
    EXPECT_THAT(ReasonOf(at_once[i].status), i == 3 ? EndsWith(" WORKER_LOST") : EndsWith("OK"));
  }
  std::vector<int> by_caller(2);
  std::atomic<size_t> next{0}, right{0};
  generator_.RunClosedLoop(
      2,
      [&](int) -> std::optional<LoadRequest> {
        const size_t at = next++;
        if (at >= requests.size()) return std::nullopt;
        return requests[at];
      },
      [&](int caller, const Outcome& outcome) {
        ++by_caller[caller];
        right += outcome.status.ok();
      });
  EXPECT_EQ(by_caller[0] + by_caller[1], 6);
  EXPECT_EQ(right, 5u);
  size_t arrived = 0;
  const std::vector<Outcome> in_time =
      generator_.RunOpenLoop([&]() -> std::optional<LoadGenerator::Arrival> {
        if (arrived == requests.size()) return std::nullopt;
        LoadGenerator::Arrival arrival = {0.001 * static_cast<double>(arrived), requests[arrived]};
        ++arrived;
        return arrival;
      });
  ASSERT_THAT(in_time, SizeIs(6));
  for (const Outcome& outcome : in_time) EXPECT_GE(outcome.sent_s, outcome.due_s);
}

// Each request ends when the test says so.
TEST(RunOpenLoopTest, HoldsRequestsBackAndStops) {
  std::vector<std::function<void(Outcome)>> running;
  absl::Notification stop;
  OpenLoopOptions options;
  options.max_concurrency = 2;
  options.stop = &stop;
  int number = 0, ended = 0;
  options.on_end = [&](const Outcome&) { ++ended; };
  const std::vector<Outcome> outcomes = RunOpenLoop(
      [&]() -> std::optional<TimedSend> {
        if (running.size() == 2) {  // full: the next one is sent only after this end
          running.front()({});
          running.erase(running.begin());
        }
        if (++number == 6) stop.Notify();
        return TimedSend{0, [&](double due_s, std::function<void(Outcome)> done) {
                           EXPECT_LT(running.size(), 2u);
                           EXPECT_LE(due_s, NowSeconds());
                           running.push_back(std::move(done));
                           // The loop waits for the last two.
                           if (number == 5) {
                             for (const auto& end : running) end({});
                             running.clear();
                           }
                         }};
      },
      options);
  EXPECT_THAT(outcomes, SizeIs(5)) << "the sixth came after the stop";
  EXPECT_EQ(ended, 5);
}

TEST_F(LoadGeneratorTest, Tokenizes) { EXPECT_EQ(generator_.Tokenize("abc", false)->size(), 3u); }

TEST_F(LoadGeneratorTest, RoutersTakeTurns) {
  FakeCluster other;
  std::atomic<int> asked{0};
  other.SetReply([&asked](DecodeCall call) {
    ++asked;
    call.Finish({'a'}, kLength);
  });
  LoadGenerator generator({cluster_.server().address(), other.server().address()});
  const std::vector<Outcome> outcomes = generator.SendAll(std::vector<LoadRequest>(10, Request(1)));
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(asked, 5);
}

}  // namespace
}  // namespace baton::cli
