// What the benchmarks that load a cluster count, and how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "benchmarks/serving/http_call.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/traffic.h"
#include "common/base/error.h"
#include "tests/cli/one_answer.h"
#include "tests/testing/fake_cluster.h"

namespace baton::benchmarks {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kManyDraws = 20'000;

TEST(TrafficMixTest, RefusesWhatItCannotRead) {
  for (const char* bad : {"", "1:2", "1:2-1:3", "0:2:3", "-1:2:3", "inf:2:3", "1:0-2:3", "1:2:3:4",
                          "1:2-3-4:5", "1:2:3,", "1:2:9999999"}) {
    EXPECT_FALSE(TrafficMix::Parse(bad).ok()) << bad;
  }
}

TEST(TrafficMixTest, DrawsByWeightAndWithinRanges) {
  const auto mix = TrafficMix::Parse("1:10-20:3,3:100:5-6");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ(mix->classes(), 2);
  EXPECT_EQ(mix->longest(), 106);
  Random random(1);
  int of_second = 0;
  for (int i = 0; i < kManyDraws; ++i) {
    const Shape shape = mix->Draw(&random);
    of_second += shape.mix_class;
    const bool first = shape.mix_class == 0;
    ASSERT_GE(shape.prompt_tokens, first ? 10 : 100);
    ASSERT_LE(shape.prompt_tokens, first ? 20 : 100);
    ASSERT_GE(shape.answer_tokens, first ? 3 : 5);
    ASSERT_LE(shape.answer_tokens, first ? 3 : 6);
  }
  EXPECT_NEAR(of_second / double{kManyDraws}, 0.75, 0.02);
}

TEST(RandomTest, ArrivalsAreAPoissonProcess) {
  Random random(2);
  double sum = 0, squares = 0;
  for (int i = 0; i < kManyDraws; ++i) {
    const double gap = random.Exponential(4);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / kManyDraws;
  EXPECT_NEAR(mean, 0.25, 0.01);
  EXPECT_NEAR(std::sqrt(squares / kManyDraws - mean * mean), 0.25, 0.01);
}

TEST(PercentileTest, IsLinearBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_NEAR(Percentile({4, 1, 3, 2}, 0.99), 3.97, 1e-9);
  EXPECT_DOUBLE_EQ(Percentile({7}, 0.99), 7);
  EXPECT_TRUE(std::isnan(Percentile({}, 0.5)));
}

Outcome Ended(absl::Status status, double ended_s, std::vector<double> token_s) {
  Outcome outcome;
  outcome.max_tokens = 3;
  outcome.timeout_s = 10;
  outcome.status = std::move(status);
  outcome.ended_s = ended_s;
  outcome.tokens.resize(token_s.size());
  outcome.token_s = std::move(token_s);
  return outcome;
}

TEST(FateTest, TellsRefusalsFromFailures) {
  const auto early = [](absl::Status status) { return FateOf(Ended(std::move(status), 1, {})); };
  EXPECT_EQ(early(absl::OkStatus()), Fate::kAnswered);
  EXPECT_EQ(early(absl::ResourceExhaustedError("")), Fate::kRefused);
  EXPECT_EQ(early(absl::UnavailableError("")), Fate::kRefused);
  EXPECT_EQ(early(absl::DeadlineExceededError("")), Fate::kRefused);
  EXPECT_EQ(early(absl::InternalError("")), Fate::kFailed);
  EXPECT_EQ(FateOf(Ended(absl::DeadlineExceededError(""), 10, {})), Fate::kExpired);
  // Who has had a token was not refused.
  EXPECT_EQ(FateOf(Ended(absl::UnavailableError(""), 1, {0.5})), Fate::kFailed);
  EXPECT_EQ(FateOf(Ended(absl::DeadlineExceededError(""), 1, {0.5})), Fate::kExpired);
}

TEST(SloTest, BoundsTheLastTokenAndTheFirst) {
  const Slo slo{1, 0.5};  // three tokens: 2 s
  const Outcome good = Ended(absl::OkStatus(), 2, {1, 1.5, 2});
  EXPECT_TRUE(slo.Met(good));
  EXPECT_TRUE(slo.FirstTokenMet(good));
  const Outcome late_start = Ended(absl::OkStatus(), 1.9, {1.1, 1.5, 1.9});
  EXPECT_TRUE(slo.Met(late_start));
  EXPECT_FALSE(slo.FirstTokenMet(late_start));
  const Outcome late_end = Ended(absl::OkStatus(), 2.1, {0.1, 0.2, 2.1});
  EXPECT_FALSE(slo.Met(late_end));
  EXPECT_FALSE(slo.FirstTokenMet(late_end));
  EXPECT_FALSE(slo.Met(Ended(absl::InternalError(""), 1, {0.1, 0.2, 0.3})));
}

TEST(SummarizeTest, CountsWhatEndedInTheWindow) {
  const Slo slo{1, 0.5};
  const absl::Status refusal =
      WithRetryAfter(absl::ResourceExhaustedError("full"), absl::Milliseconds(700));
  const std::vector<Outcome> outcomes = {
      Ended(absl::OkStatus(), 0.9, {0.5, 0.6, 0.9}),  // before it
      Ended(absl::OkStatus(), 2.0, {1.0, 1.2, 2.0}),  // in time
      Ended(absl::OkStatus(), 1.9, {1.1, 1.2, 1.9}),  // but for its first token
      Ended(absl::OkStatus(), 4.0, {3.0, 3.5, 4.0}),  // late
      Ended(refusal, 1.5, {}),
      Ended(absl::ResourceExhaustedError("full"), 1.7, {}),
      Ended(absl::InternalError("oops"), 2.0, {}),
      Ended(absl::OkStatus(), 5.1, {5.1}),  // after it
  };
  const LevelFigures f = Summarize(outcomes, slo, 1, 5);
  EXPECT_EQ(f.ended, 6);
  EXPECT_EQ(f.answered, 3);
  EXPECT_EQ(f.good, 2);
  EXPECT_EQ(f.good_ttft, 1);
  EXPECT_EQ(f.refused, 2);
  EXPECT_EQ(f.failed, 1);
  EXPECT_EQ(f.refused_with_retry, 1);
  EXPECT_DOUBLE_EQ(f.retry_p50_ms, 700);
  EXPECT_DOUBLE_EQ(f.goodput, 0.5);
  EXPECT_DOUBLE_EQ(f.goodput_ttft, 0.25);
  EXPECT_DOUBLE_EQ(f.goodput_tokens, 1.5);
  EXPECT_DOUBLE_EQ(f.refusal_p50_ms, 1600);
  EXPECT_DOUBLE_EQ(f.ttft_p50_ms, 1100);
  EXPECT_DOUBLE_EQ(f.gap_p50_ms, 500);
  EXPECT_THAT(ReasonTable({f}), HasSubstr("| INTERNAL | 1 | e.g. oops |"));
  EXPECT_THAT(GoodputTable({f}), HasSubstr("| 3 | 2 | 0 | 1 | 2 | 0.50 | 100 % | 0.25 | 2 |"));
}

TEST(MedianOfTest, TakesMediansOfTimesAndSumsOfCounts) {
  const auto round = [](double goodput, double ttft_ms, double refusal_ms) {
    LevelFigures f;
    f.window_s = 10;
    f.answered = f.good = static_cast<int>(10 * goodput);
    f.goodput = f.goodput_low = f.goodput_high = goodput;
    f.ttft_p50_ms = ttft_ms;
    f.refusal_p99_ms = refusal_ms;
    f.reasons["INTERNAL"] = 1;
    return f;
  };
  const double none = std::nan("");
  const LevelFigures f = MedianOf({round(3, 70, 5), round(1, 60, none), round(2, 10, 8)});
  EXPECT_EQ(f.rounds, 3);
  EXPECT_EQ(f.good, 60);
  EXPECT_DOUBLE_EQ(f.window_s, 30);
  EXPECT_DOUBLE_EQ(f.goodput, 2);
  EXPECT_DOUBLE_EQ(f.ttft_p50_ms, 60);
  EXPECT_DOUBLE_EQ(f.refusal_p99_ms, 6.5);  // a round without refusals says nothing of them
  EXPECT_TRUE(std::isnan(MedianOf({round(1, none, none)}).refusal_p99_ms));
  EXPECT_EQ(f.reasons.at("INTERNAL"), 3);
  EXPECT_THAT(GoodputTable({f}), HasSubstr("| 2.00 (1.00–3.00) | 100 % | 0.00 |"));
}

TEST(LoadClientTest, ReportsTokensAndRefusals) {
  FakeCluster cluster(1, 1, [](router::Options* options) { options->max_inflight_requests = 1; });
  cluster.decode(0)->SetReply([](DecodeCall call) {
    call.SendTokens({'a'});
    call.Finish({'b', 'c'}, internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  LoadGenerator client({cluster.server().address()});
  const auto model = client.GetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  LoadRequest ask = MakeRequest({'x', 'y'}, 3);
  std::vector<int> told;
  ask.on_tokens = [&](int tokens) {
    told.push_back(tokens);
    return true;
  };
  const Outcome answer = client.SendAndWait(ask);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(answer.tokens, ElementsAre('a', 'b', 'c'));
  EXPECT_EQ(told.back(), 3);
  EXPECT_EQ(answer.usage.prompt_tokens(), 2);
  EXPECT_GE(answer.ttft_s(), 0);
  EXPECT_LE(answer.token_s.back(), answer.ended_s);

  // One that never ends on its own keeps the router full.
  absl::Notification arrived;
  DecodeCall held;
  cluster.decode(0)->SetReply([&](DecodeCall call) {
    held = std::move(call);
    arrived.Notify();
  });
  ask.on_tokens = nullptr;
  absl::Notification ended;
  // Refused as long as the router has not yet noticed that the first answer is out.
  std::function<void()> hold = [&] {
    client.Send(ask, NowSeconds(), [&](const Outcome& outcome) {
      FateOf(outcome) == Fate::kRefused ? hold() : ended.Notify();
    });
  };
  hold();
  ASSERT_TRUE(arrived.WaitForNotificationWithTimeout(testing::kPatience));
  const Outcome refused = client.SendAndWait(ask);
  EXPECT_EQ(FateOf(refused), Fate::kRefused) << refused.status;
  EXPECT_TRUE(ErrorRetryAfter(refused.status).has_value());
  held.Finish({'a', 'b', 'c'}, internal::v1::DecodeResponse::FINISH_LENGTH);
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(testing::kPatience));
}

TEST(OpenLoopTest, SendsWhateverBecomesOfTheOthers) {
  FakeCluster cluster;
  // Nobody is answered until the last arrival has been seen: callers that waited would never end.
  absl::Mutex mutex;
  std::vector<DecodeCall> held;
  int expected = -1;
  cluster.decode(0)->SetReply([&](DecodeCall call) {
    absl::MutexLock lock(&mutex);
    held.push_back(std::move(call));
    if (static_cast<int>(held.size()) != expected) return;
    for (DecodeCall& one : held) {
      one.Finish(std::vector<int32_t>(one.request.max_tokens(), 'a'),
                 internal::v1::DecodeResponse::FINISH_LENGTH);
    }
  });
  const auto mix = TrafficMix::Parse("1:4:3");
  ASSERT_TRUE(mix.ok());
  LoadOptions options;
  options.rate = 100;
  options.duration_s = 0.5;
  options.seed = 3;
  options.vocab_size = 100;
  // The same draws, without sending.
  int arrivals = 0;
  Random random(options.seed);
  for (double at = random.Exponential(options.rate); at < options.duration_s;
       at += random.Exponential(options.rate)) {
    MakeRequest(mix->Draw(&random), options.vocab_size, &random);
    ++arrivals;
  }
  {
    absl::MutexLock lock(&mutex);
    expected = arrivals;
  }
  LoadGenerator client({cluster.server().address()});
  const std::vector<Outcome> outcomes = RunOpenLoop(&client, *mix, options);
  EXPECT_EQ(static_cast<int>(outcomes.size()), arrivals);
  EXPECT_GT(arrivals, 20);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens.size(), 3u);
    EXPECT_GE(outcome.sent_s, outcome.due_s);
  }
}

TEST(HttpPostTest, AsksAndReadsToTheEnd) {
  cli::OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[42]");
  const auto body = HttpPost(server.url(), "/completion", "{}", absl::Seconds(60));
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, "[42]");
  EXPECT_THAT(server.request(), AllOf(HasSubstr("POST /completion HTTP/1.1\r\n"),
                                      HasSubstr("\r\nContent-Length: 2\r\n")));
}

TEST(HttpGetTest, AsksAndReadsToTheEnd) {
  cli::OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n");
  const auto body = HttpGet(server.url(), "/metrics?{}", absl::Seconds(60));
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, "a 1\n");
  EXPECT_THAT(server.request(), HasSubstr("GET /metrics?{} HTTP/1.1\r\n"));
}

TEST(HttpPostTest, AnyOtherAnswerIsAnError) {
  cli::OneAnswer server("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 7\r\n\r\nloading");
  const auto body = HttpPost(server.url(), "/", "{}", absl::Seconds(60));
  EXPECT_THAT(std::string(body.status().message()), HasSubstr("answered 503: loading"));
  EXPECT_FALSE(HttpPost("127.0.0.1:1", "/", "{}", absl::Seconds(60)).ok());
  EXPECT_FALSE(HttpPost("http://127.0.0.1:1", "/", "{}", absl::Seconds(60)).ok());
}

}  // namespace
}  // namespace baton::benchmarks
