// Explanations of cache misses as a client gets them.
#include "router/request/cache_miss.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

using ::baton::testing::CallHarness;
using ::baton::testing::FakeSink;

constexpr char kFirst[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX";
constexpr char kOther[] = "0123456789abcdefghij#lmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX";

class CacheMissTest : public CallHarness {
 protected:
  struct Wish {
    std::string tenant = "t";
    std::string salt = "";
    bool explain = true;
  };
  // Runs a request of which `cached` tokens are found cached; returns the usage of its last
  // message.
  v1::Usage Run(const std::string& text, int cached, const Wish& wish) {
    v1::GenerateRequest request = Request();
    request.set_text(text);
    request.set_tenant(wish.tenant);
    request.set_cache_salt(wish.salt);
    request.set_explain_cache(wish.explain);
    request.set_request_id("run-" + std::to_string(network_.count()));
    FakeSink& sink = Start(request);
    FakeNetwork::Stream& s = stream(network_.count() - 1);
    internal::v1::DecodeResponse first;
    first.add_token_ids('a');
    first.mutable_usage()->set_cached_prompt_tokens(cached);
    s.Say(first);
    EXPECT_FALSE(sink.choice().usage().has_cache_miss()) << "in the last message only";
    s.Finish("b");
    EXPECT_TRUE(sink.End().ok()) << sink.End();
    return sink.choice().usage();
  }
  using FakeNetwork = testing::FakeNetwork;
};

TEST_F(CacheMissTest, AChangedPromptIsShownBesideTheEarlierOne) {
  EXPECT_FALSE(Run(kFirst, 0, {}).has_cache_miss()) << "there is no earlier prompt";
  const v1::Usage usage = Run(kOther, 16, {});
  EXPECT_EQ(usage.cached_prompt_tokens(), 16);
  ASSERT_TRUE(usage.has_cache_miss());
  const v1::CacheMiss& miss = usage.cache_miss();
  EXPECT_EQ(miss.cause(), v1::CACHE_MISS_CAUSE_CHANGED);
  EXPECT_EQ(miss.first_different_token(), 20);
  EXPECT_EQ(miss.text(), "89abcdefghij#lmnopqrstuvw");
  EXPECT_EQ(miss.earlier_text(), "89abcdefghijklmnopqrstuvw");
  EXPECT_EQ(miss.lost_tokens(), 39);
  EXPECT_EQ(miss.earlier_request_id(), "run-0");
  EXPECT_EQ(miss.lost_ms(), 0) << "no worker has reported its cost";
}

TEST_F(CacheMissTest, APromptAnsweredInOneMessageExplainsTheNext) {
  for (const char* const text : {kFirst, kOther}) {
    v1::GenerateRequest request = Request();
    request.set_text(text);
    request.set_explain_cache(true);
    FakeSink& sink = Start(request);
    stream(network_.count() - 1).Finish("a");
    ASSERT_TRUE(sink.End().ok()) << sink.End();
    // Nothing of the second prompt was cached, though both begin alike.
    EXPECT_EQ(sink.choice().usage().cache_miss().cause(),
              text == kFirst ? v1::CACHE_MISS_CAUSE_UNSPECIFIED : v1::CACHE_MISS_CAUSE_EVICTED);
  }
}

TEST_F(CacheMissTest, TheTimeLostIsThatOfTheWorkersCost) {
  Run(kFirst, 0, {});
  internal::v1::WatchResponse event;
  internal::v1::PrefillCost& cost = *event.mutable_load()->mutable_prefill_cost();
  cost.set_token_us(1000);
  cost.set_fitted_steps(100);
  for (int worker = 0; worker < 2; ++worker) {
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
  }
  Pass(absl::Seconds(1));
  for (int worker = 0; worker < 2; ++worker) {
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
  }
  const v1::Usage usage = Run(kFirst, 16, {});
  EXPECT_EQ(usage.cache_miss().cause(), v1::CACHE_MISS_CAUSE_EVICTED);
  EXPECT_EQ(usage.cache_miss().lost_tokens(), 32);
  EXPECT_NEAR(usage.cache_miss().lost_ms(), 32, 0.5);
}

TEST_F(CacheMissTest, OnlyOnRequestAndOnlyOfTheSameTenant) {
  Run(kFirst, 0, {.tenant = "a"});
  EXPECT_FALSE(Run(kFirst, 0, {.tenant = "b"}).has_cache_miss());
  EXPECT_FALSE(Run(kFirst, 0, {.tenant = "a", .explain = false}).has_cache_miss());
  EXPECT_TRUE(Run(kFirst, 0, {.tenant = "a"}).has_cache_miss());
  const v1::Usage usage = Run(kFirst, 0, {.tenant = "a", .salt = "s"});
  EXPECT_EQ(usage.cache_miss().cause(), v1::CACHE_MISS_CAUSE_OTHER_SALT);
}

TEST_F(CacheMissTest, ACachedPromptHasNone) {
  Run(kFirst, 0, {});
  EXPECT_FALSE(Run(kFirst, 48, {}).has_cache_miss());
}

}  // namespace
}  // namespace baton::router
