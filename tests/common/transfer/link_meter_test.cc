#include "common/transfer/link_meter.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/router/fake_clock.h"

namespace baton::transfer {
namespace {

constexpr int64_t kMiB = 1 << 20;
const LinkPeer kPeer = {"p0", 1};
const LinkPeer kOther = {"p1", 2};

class LinkMeterTest : public ::testing::Test {
 protected:
  void After(int64_t ms) { clock_.Advance(absl::Milliseconds(ms)); }
  // The frame takes so long on the link.
  void Kv(LinkMeter::Transfer& transfer, int64_t ms, bool was_ready, int64_t bytes = kMiB) {
    After(ms);
    transfer.OnKv(transfer.Now(), bytes, was_ready);
  }
  double Rate(const LinkPeer& peer) {
    const auto measured = meter_->Measured();
    if (measured == nullptr) return 0;
    for (const MeasuredLink& link : *measured) {
      if (link.peer == peer) return link.bytes_per_second;
    }
    return 0;
  }

  testing::FakeClock clock_;
  std::shared_ptr<LinkMeter> meter_ = std::make_shared<LinkMeter>(clock_);
};

TEST_F(LinkMeterTest, TheTimeBeforeAFrameThatWasNotReadyIsComputing) {
  const auto transfer = meter_->Begin(kPeer);
  transfer->OnFrame(transfer->Now());
  for (int layer = 0; layer < 4; ++layer) {
    Kv(*transfer, 500, /*was_ready=*/false);
    Kv(*transfer, 10, /*was_ready=*/true);
  }
  EXPECT_EQ(meter_->Measured(), nullptr) << "only whole transfers count";
  transfer->Committed();
  EXPECT_DOUBLE_EQ(Rate(kPeer), kMiB / 0.010);
}

TEST_F(LinkMeterTest, ATransferThatDoesNotEndWellSaysNothing) {
  {
    const auto transfer = meter_->Begin(kPeer);
    Kv(*transfer, 10, false);
    Kv(*transfer, 10, true);
  }
  EXPECT_EQ(meter_->Measured(), nullptr);
}

TEST_F(LinkMeterTest, SmallTransfersSayNothing) {
  meter_->Add(kPeer, LinkMeter::kLeastBytes - 1, absl::Milliseconds(1));
  EXPECT_EQ(meter_->Measured(), nullptr);
  meter_->Add(kPeer, LinkMeter::kLeastBytes, absl::ZeroDuration());
  EXPECT_EQ(meter_->Measured(), nullptr) << "no time passed";
  meter_->Add(kPeer, LinkMeter::kLeastBytes, absl::Milliseconds(1));
  EXPECT_DOUBLE_EQ(Rate(kPeer), LinkMeter::kLeastBytes / 0.001);
}

// A large transfer of which only a little was timed is no better than a small one.
TEST_F(LinkMeterTest, WhatWasTimedIsWhatMustBeLarge) {
  const auto transfer = meter_->Begin(kPeer);
  for (int i = 0; i < 8; ++i) Kv(*transfer, 100, false);
  Kv(*transfer, 1, true, 1000);
  transfer->Committed();
  EXPECT_EQ(meter_->Measured(), nullptr);
}

// Two transfers share a link of 100 MiB/s. Alone, each would seem to have half of it, or, as gRPC
// brings their frames almost together, any share.
TEST_F(LinkMeterTest, TransfersAtOnceShareTheirLink) {
  const auto a = meter_->Begin(kPeer), b = meter_->Begin(kPeer);
  a->OnFrame(a->Now());
  b->OnFrame(b->Now());
  for (int i = 0; i < 10; ++i) {
    Kv(*a, 19, true);
    Kv(*b, 1, true);
  }
  a->Committed();
  b->Committed();
  EXPECT_NEAR(Rate(kPeer), 100.0 * kMiB, 0.1 * kMiB);
}

// The frames of the other transfer come while this one waits: they used the link.
TEST_F(LinkMeterTest, BytesOfAnotherTransferCountWhileTheLinkIsBusy) {
  const auto a = meter_->Begin(kPeer), b = meter_->Begin(kPeer);
  a->OnFrame(a->Now());
  Kv(*b, 10, false);
  Kv(*b, 10, false);
  Kv(*a, 10, true);
  a->Committed();
  b->Committed();
  EXPECT_NEAR(Rate(kPeer), 100.0 * kMiB, 1);
}

TEST_F(LinkMeterTest, FramesThatAreNotedInAnotherOrderTakeNoTimeAway) {
  const auto a = meter_->Begin(kPeer), b = meter_->Begin(kPeer);
  const absl::Duration start = a->Now();
  a->OnFrame(start);
  b->OnFrame(start);
  b->OnKv(start + absl::Milliseconds(20), kMiB, true);
  a->OnKv(start + absl::Milliseconds(19), kMiB, true);
  a->OnKv(start + absl::Milliseconds(40), 2 * kMiB, true);
  a->Committed();
  b->Committed();
  EXPECT_NEAR(Rate(kPeer), 100.0 * kMiB, 1);
}

TEST_F(LinkMeterTest, TheLastMeasurementsCountMost) {
  for (int i = 0; i < 20; ++i) meter_->Add(kPeer, 100 * kMiB, absl::Seconds(1));
  EXPECT_NEAR(Rate(kPeer), 100.0 * kMiB, 1);
  clock_.Advance(20 * LinkMeter::kHalfLife);
  EXPECT_NEAR(Rate(kPeer), 100.0 * kMiB, 1) << "time alone changes nothing";
  meter_->Add(kPeer, 10 * kMiB, absl::Seconds(1));
  EXPECT_NEAR(Rate(kPeer), 10.0 * kMiB, 0.01 * kMiB);
  clock_.Advance(LinkMeter::kHalfLife);
  meter_->Add(kPeer, 20 * kMiB, absl::Seconds(1));
  EXPECT_NEAR(Rate(kPeer), 25.0 / 1.5 * kMiB, 0.01 * kMiB);
  clock_.Advance(absl::Hours(1000));
  meter_->Add(kPeer, 7 * kMiB, absl::Seconds(1));
  EXPECT_NEAR(Rate(kPeer), 7.0 * kMiB, 1) << "what has faded away is no number any more";
}

TEST_F(LinkMeterTest, AProcessWithAnotherEpochIsAnotherPeer) {
  meter_->Add(kPeer, kMiB, absl::Milliseconds(10));
  meter_->Add({"p0", 9}, kMiB, absl::Milliseconds(100));
  EXPECT_DOUBLE_EQ(Rate(kPeer), kMiB / 0.01);
  EXPECT_DOUBLE_EQ(Rate({"p0", 9}), kMiB / 0.1);
}

TEST_F(LinkMeterTest, TheReportIsTheSameObjectUntilSomethingIsMeasured) {
  meter_->Add(kPeer, kMiB, absl::Milliseconds(10));
  const auto first = meter_->Measured();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->front().measured_at, clock_.SinceStart());
  After(1000);
  const auto idle = meter_->Begin(kOther);
  EXPECT_EQ(meter_->Measured(), first);
  meter_->Add(kOther, kMiB, absl::Milliseconds(10));
  const auto second = meter_->Measured();
  EXPECT_NE(second, first);
  ASSERT_EQ(second->size(), 2u);
  EXPECT_EQ(second->front().peer, kOther) << "the last measured is first";
}

TEST_F(LinkMeterTest, PeersAreBoundedAndTheLeastRecentlyUsedIsDropped) {
  const auto under_way = meter_->Begin({"w0", 1});
  for (size_t i = 0; i <= LinkMeter::kMaxPeers; ++i) {
    After(1);
    meter_->Add({absl::StrCat("w", i), 1}, kMiB, absl::Milliseconds(10));
    if (i % 10 == 0) meter_->Begin({"w1", 1});  // in use
  }
  const auto measured = meter_->Measured();
  ASSERT_EQ(measured->size(), LinkMeter::kMaxReported);
  EXPECT_EQ(measured->front().peer.worker_id, absl::StrCat("w", LinkMeter::kMaxPeers));
  // Of a link that was dropped, nothing comes back.
  Kv(*under_way, 10, false);
  Kv(*under_way, 10, true);
  under_way->Committed();
  EXPECT_EQ(Rate({"w0", 1}), 0);
  meter_->Add({"w1", 1}, kMiB, absl::Milliseconds(10));
  EXPECT_DOUBLE_EQ(Rate({"w1", 1}), kMiB / 0.01);
}

TEST_F(LinkMeterTest, APeerWithoutAnIdIsNotMeasured) {
  EXPECT_EQ(meter_->Begin({"", 1}), nullptr);
  EXPECT_EQ(meter_->Begin({std::string(LinkMeter::kMaxIdBytes + 1, 'x'), 1}), nullptr);
  meter_->Add({"", 1}, kMiB, absl::Milliseconds(10));
  EXPECT_EQ(meter_->Measured(), nullptr);
}

}  // namespace
}  // namespace baton::transfer
