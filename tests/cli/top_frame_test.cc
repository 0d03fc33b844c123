#include "cli/top_frame.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/top_frames.h"
#include "tests/router/fake_clock.h"

namespace baton::cli {
namespace {

using ::baton::testing::AnswerOf;
using ::baton::testing::SetHistogram;
using ::baton::testing::WorkerWish;
using Json = nlohmann::json;

constexpr char kPrefill[] = "10.0.0.1:1";
constexpr char kDecode[] = "10.0.0.2:1";

class TopFrameTest : public ::testing::Test {
 protected:
  struct Counted {
    int64_t computed = 0, generated = 0, drafted = 0, accepted = 0;
    uint64_t worker_epoch = 7, router_epoch = 5;
    int64_t requests = 0, rejections = 0, prompt = 0, cached = 0;
    std::vector<uint64_t> ttft = {0, 0, 0, 0};
  };
  static v1::GetLoadsResponse Answer(const Counted& counted) {
    v1::GetLoadsResponse answer = AnswerOf(
        {{.role = v1::WORKER_ROLE_PREFILL, .address = kPrefill, .computed = counted.computed},
         {.role = v1::WORKER_ROLE_DECODE,
          .address = kDecode,
          .generated = counted.generated,
          .drafted = counted.drafted,
          .accepted = counted.accepted,
          .epoch = counted.worker_epoch}});
    v1::RouterTotals& totals = *answer.mutable_totals();
    totals.set_epoch(counted.router_epoch);
    totals.set_requests(counted.requests);
    totals.set_rejections(counted.rejections);
    totals.set_prompt_tokens(counted.prompt);
    totals.set_cached_prompt_tokens(counted.cached);
    SetHistogram(counted.ttft, totals.mutable_time_to_first_token());
    SetHistogram({0, 0, 0, 0}, totals.mutable_inter_token_latency());
    return answer;
  }
  TopFrame Add(const Counted& counted, absl::Duration later = absl::Seconds(2)) {
    clock_.Advance(later);
    return frames_.Add(Answer(counted));
  }

  testing::FakeClock clock_;
  TopFrames frames_{clock_};
};

TEST_F(TopFrameTest, RatesAreDifferencesOverTheTimeBetween) {
  const TopFrame first = Add({.computed = 1000, .generated = 50});
  EXPECT_EQ(first.between, absl::ZeroDuration());
  EXPECT_FALSE(first.prefill_tokens_per_s || first.decode_tokens_per_s || first.requests_per_s);
  EXPECT_FALSE(first.time_to_first_token.p50);
  EXPECT_EQ(first.workers.size(), 2u);

  const TopFrame second = Add({.computed = 3000,
                               .generated = 90,
                               .requests = 8,
                               .rejections = 2,
                               .prompt = 400,
                               .cached = 100,
                               .ttft = {0, 4, 4, 4}},
                              absl::Seconds(4));
  EXPECT_EQ(second.between, absl::Seconds(4));
  EXPECT_EQ(second.workers[0].prefill_tokens_per_s, 500);
  EXPECT_EQ(second.workers[0].decode_tokens_per_s, 0);
  EXPECT_EQ(second.workers[1].decode_tokens_per_s, 10);
  EXPECT_EQ(second.prefill_tokens_per_s, 500);
  EXPECT_EQ(second.decode_tokens_per_s, 10);
  EXPECT_EQ(second.requests_per_s, 2);
  EXPECT_EQ(second.refused_per_s, 0.5);
  EXPECT_EQ(second.cached_prompt_share, 0.25);
  EXPECT_DOUBLE_EQ(*second.time_to_first_token.p50, 0.015);
  EXPECT_FALSE(second.inter_token_latency.p50) << "none was observed";

  const TopFrame same_time = Add({.computed = 9000, .generated = 900}, absl::ZeroDuration());
  EXPECT_FALSE(same_time.prefill_tokens_per_s);
}

TEST_F(TopFrameTest, AProcessThatRestartsHasNoRateUntilTheNextAnswer) {
  Add({.computed = 1000, .generated = 5000, .requests = 10, .prompt = 10, .ttft = {9, 9, 9, 9}});
  const TopFrame restarted = Add({.computed = 1200,
                                  .generated = 6000,
                                  .worker_epoch = 8,
                                  .router_epoch = 6,
                                  .requests = 11,
                                  .prompt = 20,
                                  .ttft = {20, 20, 20, 20}});
  EXPECT_FALSE(restarted.workers[1].decode_tokens_per_s) << "another worker's counter";
  EXPECT_EQ(restarted.prefill_tokens_per_s, 100);
  EXPECT_EQ(restarted.decode_tokens_per_s, 0) << "of the prefill worker";
  EXPECT_FALSE(restarted.requests_per_s || restarted.cached_prompt_share);
  EXPECT_FALSE(restarted.time_to_first_token.p50);
  const Counted back = {
      .computed = 900, .generated = 6010, .worker_epoch = 8, .router_epoch = 6, .requests = 3};
  const TopFrame went_back = Add(back);
  EXPECT_FALSE(went_back.workers[0].prefill_tokens_per_s);
  EXPECT_EQ(went_back.decode_tokens_per_s, 5);
  EXPECT_FALSE(went_back.requests_per_s);
  EXPECT_FALSE(went_back.time_to_first_token.p50) << "its counts went back";
  EXPECT_EQ(Add(back).requests_per_s, 0);
}

TEST_F(TopFrameTest, TheShareOfAcceptedDraftsIsThatOfTheInterval) {
  EXPECT_FALSE(Add({.drafted = 100, .accepted = 90}).workers[1].accepted_draft_share);
  const TopFrame frame = Add({.drafted = 120, .accepted = 95});
  EXPECT_EQ(frame.workers[1].accepted_draft_share, 0.25);
  EXPECT_FALSE(frame.workers[0].accepted_draft_share) << "a prefill worker drafts nothing";
  EXPECT_FALSE(Add({.drafted = 120, .accepted = 95}).workers[1].accepted_draft_share)
      << "no drafts";
  EXPECT_EQ(Add({.drafted = 130, .accepted = 95}).workers[1].accepted_draft_share, 0);
  EXPECT_FALSE(
      Add({.drafted = 8, .accepted = 8, .worker_epoch = 8}).workers[1].accepted_draft_share)
      << "another worker's counters";
  EXPECT_FALSE(
      Add({.drafted = 5, .accepted = 5, .worker_epoch = 8}).workers[1].accepted_draft_share)
      << "they went back";
}

TEST_F(TopFrameTest, AWorkerWithoutACardHasNoRate) {
  Add({.worker_epoch = 0});
  EXPECT_FALSE(Add({.generated = 10, .worker_epoch = 0}).workers[1].decode_tokens_per_s);
}

TEST_F(TopFrameTest, AfterAnErrorTheFiguresAreOldAndTheNextRatesCoverTheGap) {
  Add({.computed = 1000});
  Add({.computed = 1200});
  clock_.Advance(absl::Seconds(3));
  const TopFrame failed = frames_.Add(absl::UnavailableError("gone"));
  EXPECT_EQ(failed.status, absl::UnavailableError("gone"));
  EXPECT_EQ(failed.age, absl::Seconds(3));
  EXPECT_EQ(failed.prefill_tokens_per_s, 100);
  EXPECT_EQ(failed.workers.size(), 2u);
  const TopFrame back = Add({.computed = 1700});
  EXPECT_TRUE(back.status.ok());
  EXPECT_EQ(back.age, absl::ZeroDuration());
  EXPECT_EQ(back.between, absl::Seconds(5));
  EXPECT_EQ(back.prefill_tokens_per_s, 100);
}

TEST(TopQuantileTest, InterpolatesWithinTheBucketsOfTheInterval) {
  v1::SecondsHistogram before, now, other;
  SetHistogram({100, 100, 100, 100}, &before);
  SetHistogram({110, 120, 120, 125}, &now);  // 10 up to 10 ms, 10 up to 20 ms, 5 beyond 40 ms
  EXPECT_DOUBLE_EQ(*QuantileBetween(before, now, 0.2), 0.005);
  EXPECT_DOUBLE_EQ(*QuantileBetween(before, now, 0.4), 0.01);
  EXPECT_DOUBLE_EQ(*QuantileBetween(before, now, 0.6), 0.015);
  EXPECT_DOUBLE_EQ(*QuantileBetween(before, now, 0.99), 0.04) << "the last bound";
  EXPECT_FALSE(QuantileBetween(now, now, 0.5)) << "no values";
  EXPECT_FALSE(QuantileBetween(now, before, 0.5)) << "counts went back";
  EXPECT_FALSE(QuantileBetween(other, now, 0.5));
  EXPECT_FALSE(QuantileBetween(now, other, 0.5));
  other = before;
  other.set_bounds_s(0, 0.011);
  EXPECT_FALSE(QuantileBetween(other, now, 0.5)) << "other bounds";
  other = now;
  other.mutable_counts()->RemoveLast();
  EXPECT_FALSE(QuantileBetween(before, other, 0.5)) << "a count is missing";
}

// Scripts read these keys: they only grow.
TEST_F(TopFrameTest, JsonHasItsKeys) {
  Add({});
  const TopFrame frame = Add({.computed = 200,
                              .drafted = 8,
                              .accepted = 6,
                              .requests = 4,
                              .prompt = 8,
                              .cached = 2,
                              .ttft = {4, 4, 4, 4}});
  const std::string line = FrameJson(frame, "r:1");
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(Json::parse(line), Json::parse(R"({
    "time_unix_ms": 1004000, "router": "r:1", "error": null, "age_s": 0.0, "interval_s": 2.0,
    "requests": {"in_flight": 12, "max_in_flight": 256, "before_first_token": 3, "per_s": 2.0,
                 "refused_per_s": 0.0},
    "prompt_tokens": {"in_flight": 0, "max_in_flight": 0, "cached_share": 0.25},
    "prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 0.0,
    "time_to_first_token_s": {"p50": 0.005, "p95": 0.0095, "p99": 0.0099},
    "inter_token_latency_s": {"p50": null, "p95": null, "p99": null},
    "workers": [
      {"address": "10.0.0.1:1", "worker_id": "id-10.0.0.1", "role": "prefill", "state": "ready",
       "kv_blocks": {"total": 100, "active": 0, "held": 0, "cached": 0, "free": 100},
       "running": 0, "queued": 0, "queued_tokens": 0, "context_tokens": 0,
       "remaining_work_ms": 0.0, "open_transfers": 0, "prefill_tokens_per_s": 100.0,
       "decode_tokens_per_s": 0.0, "accepted_draft_share": null, "age_ms": 40.0},
      {"address": "10.0.0.2:1", "worker_id": "id-10.0.0.2", "role": "decode", "state": "ready",
       "kv_blocks": {"total": 100, "active": 0, "held": 0, "cached": 0, "free": 100},
       "running": 0, "queued": 0, "queued_tokens": 0, "context_tokens": 0,
       "remaining_work_ms": 0.0, "open_transfers": 0, "prefill_tokens_per_s": 0.0,
       "decode_tokens_per_s": 0.0, "accepted_draft_share": 0.75, "age_ms": 40.0}]})"));
  const Json failed = Json::parse(FrameJson(frames_.Add(absl::UnavailableError("gone")), "r:1"));
  EXPECT_EQ(failed["error"], Json::parse(R"({"code": "UNAVAILABLE", "message": "gone"})"));
  EXPECT_EQ(failed["workers"].size(), 2u);
}

}  // namespace
}  // namespace baton::cli
