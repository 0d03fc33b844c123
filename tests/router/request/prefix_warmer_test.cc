#include "router/request/prefix_warmer.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

using ::baton::testing::CallHarness;

constexpr char kText[] = "a rubric that many prompts begin with";

class PrefixWarmerTest : public CallHarness {
 protected:
  ~PrefixWarmerTest() override { warmer_.Stop(); }

  using Answer = std::optional<absl::StatusOr<v1::WarmPrefix>>;
  std::shared_ptr<Answer> Warm(v1::WarmPrefixRequest request,
                               absl::Duration timeout = absl::Hours(1)) {
    auto answer = std::make_shared<Answer>();
    warmer_.Warm(request, clock_.Now() + timeout,
                 [answer](absl::StatusOr<v1::WarmPrefix> prefix) { *answer = std::move(prefix); });
    return answer;
  }
  static v1::WarmPrefixRequest Rubric(int replicas = 0, const std::string& text = kText) {
    v1::WarmPrefixRequest request;
    request.set_text(text);
    request.set_replicas(replicas);
    request.mutable_retention()->set_priority(60);
    request.mutable_retention()->set_ttl_ms(1000);
    return request;
  }
  // The prefill worker that computes the prefix: it is asked itself.
  std::string PrefillOf(size_t i) { return stream(i).worker == 0 ? "p0:1" : "p1:1"; }
  // The one token, as the worker sends it.
  void Complete(size_t i, int cached_tokens = 0) {
    internal::v1::DecodeResponse response;
    response.add_token_ids('x');
    response.set_finish(internal::v1::DecodeResponse::FINISH_LENGTH);
    response.mutable_usage()->set_cached_prompt_tokens(cached_tokens);
    stream(i).Say(response);
  }
  void Pass(absl::Duration time) {
    CallHarness::Pass(time);
    warmer_.OnTick();
  }
  void Lose(int worker) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }

  PrefixWarmer warmer_{[this]() -> RouterParts& {
                         Begin();
                         return parts();
                       }(),
                       /*max_prefixes=*/2};
};

TEST_F(PrefixWarmerTest, APrefixIsComputedOnEveryPrefillWorker) {
  const auto answer = Warm(Rubric());
  ASSERT_EQ(network_.count(), 2u);
  std::set<std::string> addresses;
  for (size_t i = 0; i < 2; ++i) {
    const internal::v1::DecodeRequest& request = stream(i).request;
    addresses.insert(PrefillOf(i));
    EXPECT_FALSE(request.has_prefill());
    EXPECT_EQ(stream(i).Tokens(), kText);
    EXPECT_EQ(request.max_tokens(), 1);
    EXPECT_EQ(request.priority(), v1::PRIORITY_LOW);
    EXPECT_EQ(request.retention().priority(), 60);
    EXPECT_EQ(request.retention().ttl_ms(), 1000);
  }
  EXPECT_EQ(addresses, (std::set<std::string>{"p0:1", "p1:1"}));
  Complete(0, 16);
  Pass(absl::Milliseconds(50));
  EXPECT_FALSE(answer->has_value()) << "one is still at work";
  Complete(1);
  Pass(absl::Milliseconds(50));
  ASSERT_TRUE(answer->has_value());
  ASSERT_TRUE((*answer)->ok()) << (*answer)->status();
  const v1::WarmPrefix& prefix = ***answer;
  EXPECT_EQ(prefix.tokens(), static_cast<int>(std::string(kText).size()));
  ASSERT_EQ(prefix.workers_size(), 2);
  EXPECT_EQ(prefix.workers(0).address(), PrefillOf(0));
  EXPECT_EQ(prefix.workers(0).cached_tokens(), 16);
  EXPECT_EQ(prefix.workers(0).error(), "");
  EXPECT_EQ(warmer_.List().size(), 1u);
  Pass(absl::Minutes(10));
  EXPECT_EQ(network_.count(), 2u) << "it is warm";
}

TEST_F(PrefixWarmerTest, TheTextIsSplitLikeThatOfARequest) {
  v1::WarmPrefixRequest request = Rubric();
  request.set_text("<|end|>");
  request.set_split_special_tokens(true);
  const auto answer = Warm(request);
  ASSERT_EQ(network_.count(), 2u);
  EXPECT_EQ(stream(0).Tokens(), "<|end|>");
}

TEST_F(PrefixWarmerTest, AnotherWorkerTakesThePlaceOfALostOne) {
  const auto answer = Warm(Rubric(1));
  ASSERT_EQ(network_.count(), 1u);
  const std::string first = PrefillOf(0);
  Complete(0);
  Pass(absl::Milliseconds(50));
  ASSERT_TRUE(answer->has_value());
  Lose(first == "p0:1" ? 0 : 1);
  Pass(absl::Milliseconds(50));
  ASSERT_EQ(network_.count(), 2u);
  EXPECT_NE(PrefillOf(1), first);
  Complete(1);
  Pass(absl::Milliseconds(50));
  ASSERT_EQ(warmer_.List().front().workers_size(), 1);
  EXPECT_EQ(warmer_.List().front().workers(0).address(), PrefillOf(1));
}

TEST_F(PrefixWarmerTest, ARestartedWorkerIsWarmedAgain) {
  Warm(Rubric());
  Complete(0), Complete(1);
  Pass(absl::Milliseconds(50));
  ASSERT_EQ(network_.count(), 2u);
  LoseWatch(0);
  Pass(absl::Milliseconds(50));
  Introduce(0);  // with another epoch
  Pass(absl::Milliseconds(50));
  ASSERT_EQ(network_.count(), 3u);
  EXPECT_EQ(PrefillOf(2), "p0:1");
}

TEST_F(PrefixWarmerTest, AFailureIsReportedAndTriedAgain) {
  const auto answer = Warm(Rubric(1));
  stream(0).End(absl::StatusCode::kInvalidArgument, "PROMPT_LENGTH");
  Pass(absl::Milliseconds(50));
  ASSERT_TRUE(answer->has_value());
  ASSERT_TRUE((*answer)->ok()) << (*answer)->status();
  EXPECT_NE((**answer)->workers(0).error(), "");
  EXPECT_EQ(network_.count(), 1u);
  Pass(PrefixWarmer::kFirstPause);
  ASSERT_EQ(network_.count(), 2u);
  stream(1).End(absl::StatusCode::kInvalidArgument, "PROMPT_LENGTH");
  Pass(absl::Milliseconds(50));
  Pass(PrefixWarmer::kFirstPause);
  EXPECT_EQ(network_.count(), 2u) << "the pause grows";
  Pass(PrefixWarmer::kFirstPause);
  ASSERT_EQ(network_.count(), 3u);
  Complete(2);
  Pass(absl::Milliseconds(50));
  EXPECT_EQ(warmer_.List().front().workers(0).error(), "");
}

TEST_F(PrefixWarmerTest, TheSamePromptIsRememberedOnce) {
  Warm(Rubric(1));
  Complete(0);
  Pass(absl::Milliseconds(50));
  const std::string id = warmer_.List().front().id();
  v1::WarmPrefixRequest stronger = Rubric(2);
  stronger.mutable_retention()->set_priority(90);
  const auto answer = Warm(stronger);
  ASSERT_EQ(network_.count(), 3u) << "with the new retention on the first, and on another";
  EXPECT_EQ(stream(1).request.retention().priority(), 90);
  Complete(1), Complete(2);
  Pass(absl::Milliseconds(50));
  ASSERT_TRUE(answer->has_value());
  EXPECT_EQ((**answer)->id(), id);
  EXPECT_EQ((**answer)->replicas(), 2);
  // Another salt is another prefix.
  v1::WarmPrefixRequest salted = Rubric(1);
  salted.set_cache_salt("s");
  Warm(salted);
  EXPECT_EQ(warmer_.List().size(), 2u);
  EXPECT_EQ(stream(3).request.cache_salt(), "s");
  Complete(3);
}

TEST_F(PrefixWarmerTest, ARetentionThatComesWhileThePrefixIsComputedIsAppliedBehindIt) {
  Warm(Rubric(1));
  v1::WarmPrefixRequest stronger = Rubric(1);
  stronger.mutable_retention()->set_priority(90);
  const auto answer = Warm(stronger);
  Complete(0);
  Pass(absl::Milliseconds(50));
  ASSERT_EQ(network_.count(), 2u);
  EXPECT_FALSE(answer->has_value());
  EXPECT_EQ(stream(1).request.retention().priority(), 90);
  Complete(1);
  Pass(absl::Milliseconds(50));
  ASSERT_TRUE(answer->has_value());
  EXPECT_EQ(network_.count(), 2u);
}

TEST_F(PrefixWarmerTest, PrefixesAreBoundedAndDropped) {
  Warm(Rubric(1, "one"));
  Warm(Rubric(1, "two"));
  const auto third = Warm(Rubric(1, "three"));
  ASSERT_TRUE(third->has_value());
  EXPECT_TRUE(absl::IsResourceExhausted((*third)->status()));
  EXPECT_EQ(ErrorReason((*third)->status()), "TOO_MANY_WARM_PREFIXES");
  for (const v1::WarmPrefix& prefix : warmer_.List()) {
    EXPECT_TRUE(warmer_.Drop(prefix.id()).ok());
  }
  EXPECT_TRUE(warmer_.List().empty());
  for (size_t i = 0; i < network_.count(); ++i) EXPECT_TRUE(stream(i).cancelled);
  const absl::Status unknown = warmer_.Drop("none");
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_EQ(ErrorReason(unknown), "UNKNOWN_PREFIX");
  EXPECT_FALSE(Warm(Rubric(1, "three"))->has_value()) << "there is room again";
  EXPECT_EQ(warmer_.List().size(), 1u);
}

TEST_F(PrefixWarmerTest, AtItsDeadlineTheCallGetsWhatIsKnown) {
  const auto answer = Warm(Rubric(), absl::Seconds(3));
  Complete(0);
  Pass(absl::Seconds(2));
  EXPECT_FALSE(answer->has_value());
  Pass(absl::Seconds(1));
  ASSERT_TRUE(answer->has_value());
  ASSERT_TRUE((*answer)->ok());
  EXPECT_EQ((**answer)->workers_size(), 2);
  Complete(1);
}

TEST_F(PrefixWarmerTest, WrongRequestsAreRefused) {
  const auto reason = [this](const v1::WarmPrefixRequest& request) {
    const auto answer = Warm(request);
    EXPECT_TRUE(answer->has_value());
    return ErrorReason((*answer)->status()) + " " + ErrorField((*answer)->status());
  };
  EXPECT_EQ(reason(Rubric(-1)), "OUT_OF_RANGE replicas");
  EXPECT_EQ(reason(Rubric(1, "")), "EMPTY_PROMPT text");
  EXPECT_EQ(reason(Rubric(1, std::string(500, 'a'))), "PROMPT_TOO_LONG text");
  v1::WarmPrefixRequest wrong = Rubric();
  wrong.mutable_retention()->set_priority(101);
  EXPECT_EQ(reason(wrong), "OUT_OF_RANGE retention.priority");
  wrong = Rubric();
  wrong.set_model("other");
  EXPECT_EQ(reason(wrong), "MODEL_NOT_FOUND model");
  EXPECT_EQ(network_.count(), 0u);
  EXPECT_TRUE(warmer_.List().empty());
}

TEST_F(PrefixWarmerTest, StopEndsEverything) {
  const auto answer = Warm(Rubric());
  warmer_.Stop();
  ASSERT_TRUE(answer->has_value());
  EXPECT_EQ(ErrorReason((*answer)->status()), "DRAINING");
  EXPECT_TRUE(stream(0).cancelled && stream(1).cancelled);
  const auto late = Warm(Rubric());
  EXPECT_EQ(ErrorReason((*late)->status()), "DRAINING");
}

}  // namespace
}  // namespace baton::router
