#include "router/routing/decision_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <sstream>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::shared_ptr<Decision> Make(const std::string& request_id) {
  auto decision = std::make_shared<Decision>();
  decision->request_id = request_id;
  decision->time = absl::UnixEpoch() + absl::Seconds(5);
  decision->prompt_tokens = 100;
  decision->computes = 0;
  decision->answers = 1;
  decision->computes_address = "p:1";
  decision->answers_address = "d:1";
  decision->label = "prefix";
  decision->policy = "priced";
  decision->kappa = 1.5;
  decision->predicted_cached_tokens = 64;
  decision->predicted_ttft_seconds = 0.2;
  decision->prefill_candidates = 3;
  decision->decode_candidates = 1;
  DecisionCandidate& candidate = decision->candidates.emplace_back();
  candidate.worker = 0;
  candidate.role = v1::WORKER_ROLE_PREFILL;
  candidate.address = "p:1";
  candidate.cached_tokens = 64;
  candidate.queue_seconds = 0.125;
  candidate.service_seconds = 0.0625;
  candidate.cost = 0.25;
  candidate.excluded = "failed lately";
  return decision;
}

class DecisionLogTest : public ::testing::Test {
 protected:
  std::string Metrics() {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, registry_.Collect());
    return out.str();
  }
  prometheus::Registry registry_;
  RouterMetrics metrics_{&registry_, "tiny"};
  DecisionLog log_{0, metrics_};
};

TEST_F(DecisionLogTest, AllThatIsKnownIsTold) {
  const int64_t number = log_.Add(Make("a"));
  ASSERT_THAT(log_.Last(5, ""), SizeIs(1));
  v1::Decision told = log_.Last(5, "")[0];
  EXPECT_EQ(told.request_id(), "a");
  EXPECT_EQ(told.time_unix_ms(), 5000);
  EXPECT_EQ(told.prompt_tokens(), 100);
  EXPECT_EQ(told.policy(), "priced");
  EXPECT_EQ(told.decision(), "prefix");
  EXPECT_EQ(told.computes_address(), "p:1");
  EXPECT_EQ(told.answers_address(), "d:1");
  EXPECT_EQ(told.prefill_address(), "p:1");
  EXPECT_EQ(told.decode_address(), "d:1");
  EXPECT_EQ(told.kappa(), 1.5);
  EXPECT_EQ(told.predicted_cached_tokens(), 64);
  EXPECT_EQ(told.predicted_ttft_seconds(), 0.2);
  EXPECT_EQ(told.prefill_candidates(), 3);
  ASSERT_EQ(told.candidates_size(), 1);
  EXPECT_EQ(told.candidates(0).queue_seconds(), 0.125);
  EXPECT_EQ(told.candidates(0).service_seconds(), 0.0625);
  EXPECT_EQ(told.candidates(0).cost(), 0.25);
  EXPECT_EQ(told.candidates(0).excluded(), "failed lately");
  EXPECT_FALSE(told.has_actual_ttft_seconds());
  log_.OnFirstToken(number, absl::Milliseconds(500), 48);
  told = log_.Last(5, "")[0];
  EXPECT_EQ(told.actual_ttft_seconds(), 0.5);
  EXPECT_EQ(told.actual_cached_tokens(), 48);
}

TEST_F(DecisionLogTest, OfAWorkerThatDoesBothTheOlderFieldsNameItByItsRole) {
  for (const v1::WorkerRole role : {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}) {
    const auto decision = Make("a");
    decision->answers = decision->computes;
    decision->answers_address = decision->computes_address;
    decision->candidates[0].role = role;
    const v1::Decision told = ToProto(*decision);
    EXPECT_EQ(told.computes_address(), "p:1");
    EXPECT_EQ(told.answers_address(), "p:1");
    const bool prefill = role == v1::WORKER_ROLE_PREFILL;
    EXPECT_EQ(told.prefill_address(), prefill ? "p:1" : "");
    EXPECT_EQ(told.decode_address(), prefill ? "" : "p:1");
  }
}

TEST_F(DecisionLogTest, TheOldestGivesWayAndIsNotMistakenForItsSuccessor) {
  const int64_t first = log_.Add(Make("first"));
  for (int i = 0; i < DecisionLog::kCapacity; ++i) log_.Add(Make(absl::StrCat(i)));
  EXPECT_THAT(log_.Last(1 << 20, ""), SizeIs(DecisionLog::kCapacity));
  EXPECT_THAT(log_.Last(1, "first"), IsEmpty());
  log_.OnFirstToken(first, absl::Seconds(1), 0);
  log_.OnFirstToken(-1, absl::Seconds(1), 0);
  log_.OnFirstToken(1 << 20, absl::Seconds(1), 0);
  for (const v1::Decision& decision : log_.Last(1 << 20, "")) {
    EXPECT_FALSE(decision.has_actual_ttft_seconds());
  }
  EXPECT_THAT(Metrics(), HasSubstr("baton_route_cached_tokens_error_count{model=\"tiny\","
                                   "role=\"router\"} 0"));
}

TEST_F(DecisionLogTest, NewestFirstAndByRequest) {
  for (const char* id : {"a", "b", "a", "c"}) log_.Add(Make(id));
  EXPECT_EQ(log_.Last(2, "")[0].request_id(), "c");
  EXPECT_EQ(log_.Last(2, "")[1].request_id(), "a");
  EXPECT_THAT(log_.Last(9, "a"), SizeIs(2));
  EXPECT_THAT(log_.Last(1, "a"), SizeIs(1));
}

TEST_F(DecisionLogTest, MetricsCompareWhatWasPredictedWithWhatCame) {
  log_.OnFirstToken(log_.Add(Make("a")), absl::Milliseconds(300), 48);
  const std::string labels = R"({model="tiny",role="router")";
  std::string metrics = Metrics();
  EXPECT_THAT(metrics,
              HasSubstr(absl::StrCat("baton_route_cached_tokens_error_sum", labels, "} -16")));
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("baton_route_cached_tokens_error_bucket", labels,
                                              ",le=\"-64\"} 0")));
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("baton_route_cached_tokens_error_bucket", labels,
                                              ",le=\"-16\"} 1")));
  EXPECT_THAT(metrics,
              HasSubstr(absl::StrCat("baton_route_ttft_ratio_bucket", labels, ",le=\"1.25\"} 0")));
  EXPECT_THAT(metrics,
              HasSubstr(absl::StrCat("baton_route_ttft_ratio_bucket", labels, ",le=\"2\"} 1")));
  auto unknown = Make("b");
  unknown->predicted_ttft_seconds = 0;
  log_.OnFirstToken(log_.Add(unknown), absl::Milliseconds(300), 64);
  metrics = Metrics();
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("baton_route_ttft_ratio_count", labels, "} 1")));
  EXPECT_THAT(metrics,
              HasSubstr(absl::StrCat("baton_route_cached_tokens_error_count", labels, "} 2")));
}

TEST_F(DecisionLogTest, AsText) {
  const std::string text = ToText(*Make("a"));
  EXPECT_THAT(text,
              HasSubstr("request a of 100 tokens: p:1 computes, d:1 answers: prefix by priced, "
                        "kappa 1.5"));
  EXPECT_THAT(text, HasSubstr("prefill p:1 cached 64 Q 0.125 T 0.0625 cost 0.25 (failed lately)"));
}

}  // namespace
}  // namespace baton::router
