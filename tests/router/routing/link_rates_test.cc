#include "router/routing/link_rates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

class LinkRatesTest : public ::testing::Test {
 protected:
  static constexpr int kP0 = 0, kP1 = 1, kP2 = 2, kD0 = 3, kD1 = 4;
  static constexpr double kFast = 1e9, kSlow = 1e8;

  LinkRatesTest() {
    links_.Grow(5);
    for (int worker = kP0; worker <= kD1; ++worker) links_.Joins(worker, Id(worker), Epoch(worker));
  }
  static std::string Id(int worker) { return absl::StrCat("w", worker); }
  static uint64_t Epoch(int worker) { return 70 + static_cast<uint64_t>(worker); }

  struct Told {
    int prefill;
    double rate;
    double age_s = 0;
  };
  void Tell(int decode, const std::vector<Told>& told, bool tick = true) {
    internal::v1::LoadReport report;
    for (const Told& link : told) {
      internal::v1::LinkRate& rate = *report.add_links();
      rate.set_worker_id(Id(link.prefill));
      rate.set_epoch(Epoch(link.prefill));
      rate.set_bytes_per_second(link.rate);
      rate.set_age_us(static_cast<int64_t>(link.age_s * 1e6));
    }
    links_.OnReport(decode, report, now_s_);
    if (tick) links_.Tick(now_s_);
  }
  void After(double seconds) {
    now_s_ += seconds;
    links_.Tick(now_s_);
  }
  // Bytes a second; 0: not known.
  double Rate(int prefill, int decode) const {
    const float seconds = links_.SecondsPerByteTo(decode)[prefill];
    return seconds > 0 ? 1 / seconds : 0;
  }

  double now_s_ = 1000;
  LinkRates links_;
};

TEST_F(LinkRatesTest, NothingIsKnownBeforeAReport) {
  links_.Tick(now_s_);
  EXPECT_FALSE(links_.any());
  Tell(kD0, {});
  EXPECT_FALSE(links_.any());
  Tell(kD0, {{kP0, kFast}});
  EXPECT_TRUE(links_.any());
}

TEST_F(LinkRatesTest, APairIsAsMeasuredOrAsItsDecodeWorkerOrAsItsPrefillWorker) {
  Tell(kD0, {{kP0, kFast}, {kP1, kSlow}});
  EXPECT_NEAR(Rate(kP0, kD0), kFast, kFast * 1e-4);
  EXPECT_NEAR(Rate(kP1, kD0), kSlow, kSlow * 1e-4);
  const double mean = std::sqrt(kFast * kSlow);
  EXPECT_NEAR(Rate(kP2, kD0), mean, mean * 1e-4) << "of the decode worker's links";
  EXPECT_NEAR(Rate(kP0, kD1), kFast, kFast * 1e-4) << "of the prefill worker's links";
  EXPECT_NEAR(Rate(kP1, kD1), kSlow, kSlow * 1e-4);
  EXPECT_EQ(Rate(kP2, kD1), 0);
}

// One decode worker has found out that a prefill worker's links are slow: the others need not.
TEST_F(LinkRatesTest, AnUnknownLinkOfASlowPrefillWorkerIsSlow) {
  Tell(kD0, {{kP0, kSlow}, {kP1, kFast}, {kP2, kFast}});
  Tell(kD1, {{kP1, kFast}});
  EXPECT_LT(Rate(kP0, kD1), 0.3 * Rate(kP1, kD1));
  EXPECT_GT(Rate(kP2, kD1), 0.9 * Rate(kP1, kD1));
  // Nor is a decode worker slow that was only brought KV by the slow one.
  links_.Forget(kD1);
  links_.Joins(kD1, Id(kD1), Epoch(kD1));
  Tell(kD1, {{kP0, kSlow}});
  EXPECT_GT(Rate(kP1, kD1), 3 * Rate(kP0, kD1));
}

TEST_F(LinkRatesTest, LinksThatAreNearlyEqualAreEqual) {
  Tell(kD0, {{kP0, 1.2e9}, {kP1, 1e9}});
  EXPECT_DOUBLE_EQ(Rate(kP0, kD0), Rate(kP1, kD0));
  EXPECT_NEAR(Rate(kP0, kD0), std::sqrt(1.2e18), 1e5);
}

// Whether a link stands out must not change with each measurement of a link at the bound.
TEST_F(LinkRatesTest, ALinkThatStandsOutDoesSoUntilItIsNear) {
  const auto tell = [this](double rate) {
    Tell(kD0, {{kP0, rate}});
    Tell(kD1, {{kP0, kFast}, {kP1, kFast}, {kP2, kFast}});
    return Rate(kP0, kD0) < 0.99 * Rate(kP0, kD1);
  };
  // The mean is that of four links: a rate of r puts it at r to the power of a quarter.
  EXPECT_FALSE(tell(0.6e9)) << "1.47 from the mean";
  EXPECT_TRUE(tell(0.5e9)) << "1.68";
  EXPECT_TRUE(tell(0.6e9));
  EXPECT_FALSE(tell(0.8e9)) << "1.18";
  EXPECT_FALSE(tell(0.6e9));
}

TEST_F(LinkRatesTest, WhatIsNotMeasuredAnyMoreDriftsToTheMean) {
  Tell(kD0, {{kP0, kSlow}});
  const auto others = [this] { Tell(kD1, {{kP0, kFast}, {kP1, kFast}, {kP2, kFast}}); };
  others();
  EXPECT_NEAR(Rate(kP0, kD0), kSlow, kSlow * 1e-4);
  After(LinkRates::kHolds_s - 1);
  others();
  EXPECT_NEAR(Rate(kP0, kD0), kSlow, kSlow * 1e-4);
  double last = kSlow;
  for (int i = 0; i < 2; ++i) {
    After(LinkRates::kFadesIn_s);
    others();
    EXPECT_GT(Rate(kP0, kD0), 1.5 * last);
    last = Rate(kP0, kD0);
  }
  After(4 * LinkRates::kFadesIn_s);
  others();
  EXPECT_DOUBLE_EQ(Rate(kP0, kD0), Rate(kP0, kD1)) << "it is tried again";
  Tell(kD0, {{kP0, kSlow}});
  EXPECT_NEAR(Rate(kP0, kD0), kSlow, kSlow * 1e-4);
}

TEST_F(LinkRatesTest, TimeAloneMakesOldLinksFade) {
  Tell(kD0, {{kP0, kSlow}, {kP1, kFast}});
  After(LinkRates::kHolds_s + 3 * LinkRates::kFadesIn_s);
  EXPECT_DOUBLE_EQ(Rate(kP0, kD0), Rate(kP1, kD0));
  After(3600);
  EXPECT_FALSE(links_.any());
}

TEST_F(LinkRatesTest, AReportedAgeIsTakenOff) {
  Tell(kD0, {{kP0, kSlow, LinkRates::kHolds_s + 5 * LinkRates::kFadesIn_s}, {kP1, kFast}});
  EXPECT_DOUBLE_EQ(Rate(kP0, kD0), Rate(kP1, kD0));
}

TEST_F(LinkRatesTest, LinksOfOtherProcessesSayNothing) {
  Tell(kD0, {{kP0, kSlow}, {kP1, kFast}});
  links_.Forget(kP0);
  links_.Joins(kP0, Id(kP0), 999);
  links_.Tick(now_s_);
  EXPECT_NEAR(Rate(kP0, kD0), kFast, kFast * 1e-4) << "as the decode worker's other link";
  // It is heard of before its card.
  internal::v1::LoadReport report;
  report.add_links()->set_worker_id("late");
  report.mutable_links(0)->set_epoch(5);
  report.mutable_links(0)->set_bytes_per_second(kSlow);
  links_.OnReport(kD0, report, now_s_);
  links_.Tick(now_s_);
  links_.Joins(kP2, "late", 5);
  links_.Tick(now_s_);
  EXPECT_NEAR(Rate(kP2, kD0), kSlow, kSlow * 1e-4);
  links_.Forget(kD0);
  links_.Tick(now_s_);
  EXPECT_FALSE(links_.any());
}

TEST_F(LinkRatesTest, AProcessUnderAnotherNumberKeepsItsLinks) {
  Tell(kD0, {{kP0, kFast}});
  links_.Joins(kP2, Id(kP0), Epoch(kP0));
  links_.Forget(kP0);
  links_.Tick(now_s_);
  EXPECT_NEAR(Rate(kP2, kD0), kFast, kFast * 1e-4);
}

TEST_F(LinkRatesTest, NumbersThatMakeNoSenseAreIgnored) {
  for (const double rate : {0.0, -1e9, 1e-300, 1e300, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    Tell(kD0, {{kP0, rate}});
    EXPECT_FALSE(links_.any()) << rate;
  }
  internal::v1::LoadReport report;
  internal::v1::LinkRate& link = *report.add_links();
  link.set_bytes_per_second(kFast);
  link.set_epoch(Epoch(kP0));
  links_.OnReport(kD0, report, now_s_);
  link.set_worker_id(std::string(10'000, 'x'));
  links_.OnReport(kD0, report, now_s_);
  link.set_worker_id(Id(kP0));
  link.set_age_us(std::numeric_limits<int64_t>::max());
  links_.OnReport(kD0, report, now_s_);
  links_.Tick(now_s_);
  EXPECT_FALSE(links_.any());
  link.set_age_us(std::numeric_limits<int64_t>::min());
  links_.OnReport(kD0, report, now_s_);
  links_.Tick(now_s_);
  EXPECT_NEAR(Rate(kP0, kD0), kFast, kFast * 1e-4) << "not from the future";
}

TEST_F(LinkRatesTest, AReportHasABoundAndSoDoesWhatIsKept) {
  const auto of = [](int first, int count) {
    internal::v1::LoadReport report;
    for (int i = first; i < first + count; ++i) {
      internal::v1::LinkRate& link = *report.add_links();
      link.set_worker_id(absl::StrCat("x", i));
      link.set_epoch(5);
      link.set_bytes_per_second(i == 0 ? kSlow : kFast);
    }
    return report;
  };
  links_.Joins(kP0, "x32", 5);
  links_.OnReport(kD0, of(0, 33), now_s_);
  links_.Tick(now_s_);
  EXPECT_FALSE(links_.any()) << "beyond the 32 of a report";
  links_.Joins(kP0, "x0", 5);
  links_.Tick(now_s_);
  EXPECT_NEAR(Rate(kP0, kD0), kSlow, kSlow * 1e-4);
  for (int first = 32; first <= static_cast<int>(LinkRates::kMostLinks); first += 32) {
    now_s_ += 1;
    links_.OnReport(kD0, of(first, 32), now_s_);
  }
  links_.Tick(now_s_);
  EXPECT_FALSE(links_.any()) << "the first 32 were measured longest ago";
}

TEST_F(LinkRatesTest, AGrowingFleetKeepsWhatIsKnown) {
  Tell(kD0, {{kP0, kFast}, {kP1, kSlow}});
  links_.Grow(50);
  EXPECT_FALSE(links_.any()) << "until the next Tick";
  links_.Tick(now_s_);
  EXPECT_NEAR(Rate(kP1, kD0), kSlow, kSlow * 1e-4);
  EXPECT_NEAR(Rate(49, kD0), std::sqrt(kFast * kSlow), 1e5);
}

}  // namespace
}  // namespace baton::router
