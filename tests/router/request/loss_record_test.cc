#include "router/request/loss_record.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/error.h"
#include "router/request/retry_budget.h"

namespace baton::router {
namespace {

constexpr absl::Duration kLossAt = absl::Seconds(100);

struct FakeSigns final : WorkerSigns {
  std::set<int> dead;
  bool LooksDead(const WorkerTarget& target) const override { return dead.contains(target.worker); }
  absl::Duration SilenceOf(int) const override { return absl::ZeroDuration(); }
};

Loss LossOn(int worker, bool ran, bool sudden) {
  Loss loss;
  WorkerTarget target;
  target.worker = worker;
  loss.suspects.push_back({target, sudden});
  loss.ran = ran;
  loss.at = kLossAt;
  return loss;
}

TEST(LossRecordTest, ALossOfADeadWorkerIsNotHeldAgainstTheRequest) {
  LossRecord record;
  FakeSigns signs;
  for (int worker = 0; worker < 20; ++worker) {
    signs.dead.insert(worker);
    record.Add(LossOn(worker, /*ran=*/false, /*sudden=*/true));  // it waited in the queue there
    record.Add(LossOn(worker, /*ran=*/true, /*sudden=*/false));  // the worker froze
    record.Settle(signs, kLossAt);
  }
  EXPECT_EQ(record.count(), 40);
  EXPECT_EQ(record.unproven(), 0);
  EXPECT_EQ(record.deaths(), 0);
  EXPECT_EQ(record.possible_deaths(), 0);
}

TEST(LossRecordTest, TheDeathMayBecomeKnownLaterButNotMuchLater) {
  LossRecord record;
  FakeSigns signs;
  record.Add(LossOn(1, /*ran=*/true, /*sudden=*/true));
  record.Add(LossOn(2, /*ran=*/true, /*sudden=*/true));
  record.Settle(signs, kLossAt);
  EXPECT_EQ(record.unproven(), 2);
  EXPECT_EQ(record.possible_deaths(), 2);
  signs.dead = {1};
  record.Settle(signs, kLossAt + kProofWithin);
  EXPECT_EQ(record.unproven(), 1);
  EXPECT_EQ(record.deaths(), 1);
  EXPECT_EQ(record.possible_deaths(), 2);
  signs.dead = {2};
  record.Settle(signs, kLossAt + kProofWithin + absl::Milliseconds(1));
  EXPECT_EQ(record.unproven(), 1) << "that is another matter";
  signs.dead.clear();
  record.Settle(signs, kLossAt);
  EXPECT_EQ(record.deaths(), 1) << "what was proven stays so, though the worker is back";
}

TEST(LossRecordTest, OfTwoSuspectsTheDeadOneCounts) {
  LossRecord record;
  FakeSigns signs;
  Loss loss = LossOn(1, /*ran=*/true, /*sudden=*/true);
  loss.suspects.push_back(LossOn(2, true, /*sudden=*/false).suspects[0]);
  record.Add(loss);
  signs.dead = {2};  // it froze
  record.Settle(signs, kLossAt);
  EXPECT_EQ(record.unproven(), 0);
  EXPECT_EQ(record.deaths(), 0);
}

TEST(LossRecordTest, ATokenStartsTheCountAnew) {
  LossRecord record;
  FakeSigns signs;
  signs.dead = {1};
  record.Add(LossOn(1, true, true));
  record.Add(LossOn(2, true, true));
  record.Settle(signs, kLossAt);
  record.Clear();
  EXPECT_EQ(record.count() + record.deaths() + record.unproven() + record.possible_deaths(), 0);
}

TEST(LossRecordTest, ARequestThatEndsWorkersIsNotToBeTriedAgain) {
  EXPECT_EQ(WorkersDied().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(WorkersDied()), "WORKERS_DIED");
  EXPECT_FALSE(ErrorRetryAfter(WorkersDied()).has_value());
}

}  // namespace
}  // namespace baton::router
