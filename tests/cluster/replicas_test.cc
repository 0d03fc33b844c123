// Two routers over the same workers: workers and routers are killed, come back at their addresses,
// join and leave, all under load. No answer is ever wrong, no worker keeps the work of an ended
// request, and a router that has just started finds what is cached.
#include "tests/cluster/replicas.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/testing/seed.h"

namespace baton {
namespace {

TEST_F(ReplicasTest, RoutersKilledAndRestartedInTurnFindWhatIsCached) {
  StartAll({"p0", "p1", "p2", "d0", "d1"});
  const std::vector<Case> cases =
      MakeCases(*oracle_, 48, testing::TestSeed(51), /*max_tokens_bound=*/8);
  HitRate(0, cases);
  const double before = HitRate(0, cases);
  EXPECT_GT(before, 0.8) << "a second time, all but the tails of prompts is cached somewhere";
  // The other one has routed nothing, and knows as much.
  EXPECT_GT(HitRate(1, cases), 0.95 * before);
  for (int router = 0; router < kRouters; ++router) {
    StartLoad(cases);
    AwaitAnswers(20);
    routers_[router].reset();
    AwaitAnswers(20);  // by the other one
    const absl::Time start = absl::Now();
    StartRouter(router);
    ASSERT_TRUE(AwaitListed(router));
    std::printf("router %d knew its workers again after %.0f ms, under load\n", router,
                absl::ToDoubleMilliseconds(absl::Now() - start));
    AwaitAnswers(20);
    StopLoad();
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(HitRate(router, cases), 0.95 * before);
  }
  ExpectIdle();
}

TEST_F(ReplicasTest, WorkersAreKilledComeBackJoinAndLeaveUnderLoad) {
  StartAll({"p0", "p1", "d0", "d1"});
  const std::vector<Case> cases =
      MakeCases(*oracle_, 48, testing::TestSeed(52), /*max_tokens_bound=*/20);
  StartLoad(cases);
  AwaitAnswers(20);
  // Killed, and back at the same address as another process.
  for (const char* name : {"p0", "d0", "p1"}) {
    const uint64_t epoch = EpochOf(name);
    workers_[name].reset();
    AwaitAnswers(20);
    const absl::Time start = absl::Now();
    StartWorker(name);
    for (int i = 0; i < kRouters; ++i) ASSERT_TRUE(AwaitReborn(i, name, epoch));
    std::printf("%s was used again after %.0f ms\n", name,
                absl::ToDoubleMilliseconds(absl::Now() - start));
    AwaitAnswers(20);
  }
  // New ones.
  StartWorker("p2");
  StartWorker("d2");
  List({"p0", "p1", "p2", "d0", "d1", "d2"});
  for (int i = 0; i < kRouters; ++i) ASSERT_TRUE(AwaitListed(i));
  AwaitAnswers(20);
  // Old ones leave: first the lists, then, when no request goes there any more, the processes.
  // No request fails.
  const int64_t failed = failed_;
  List({"p1", "p2", "d1", "d2"});
  for (int i = 0; i < kRouters; ++i) ASSERT_TRUE(AwaitListed(i));
  for (const char* name : {"p0", "d0"}) {
    ASSERT_TRUE(WaitUntilIdle(addresses_[name]).ok());
    workers_.erase(name);
  }
  AwaitAnswers(40);
  EXPECT_EQ(failed_, failed);
  StopLoad();
  std::printf("%ld answers, all right; %ld requests failed cleanly\n",
              static_cast<long>(answered_.load()), static_cast<long>(failed_.load()));
  ExpectIdle();
}

// Packets are lost both ways, and no connection is told so: silence is all there is to go by.
TEST_F(ReplicasTest, WorkersBehindACutNetworkAreLeftAloneUntilItIsMended) {
  for (const char* name : {"p0", "p1", "d0", "d1"}) StartWorker(name);
  for (const char* name : {"p1", "d1"}) PutBehindProxy(name);
  List({"p0", "p1", "d0", "d1"});
  for (int i = 0; i < kRouters; ++i) StartRouter(i);
  for (int i = 0; i < kRouters; ++i) ASSERT_TRUE(AwaitListed(i));
  const std::vector<Case> cases =
      MakeCases(*oracle_, 48, testing::TestSeed(53), /*max_tokens_bound=*/20);
  StartLoad(cases);
  AwaitAnswers(20);
  for (const std::string name : {"d1", "p1"}) {
    testing::LinkFaults lost;
    lost.hold = true;
    const absl::Time cut = absl::Now();
    for (const auto way : {testing::Flow::Way::kToTarget, testing::Flow::Way::kToOpener}) {
      proxy_->Set({"*", name, way}, lost);
    }
    for (int i = 0; i < kRouters; ++i) {
      ASSERT_TRUE(AwaitUse(i, name, false));
    }
    const absl::Time gone = absl::Now();
    // What hung there has been answered by others, too: all callers go on.
    AwaitAnswers(200);
    const absl::Time mended = absl::Now();
    proxy_->Heal();
    for (int i = 0; i < kRouters; ++i) {
      ASSERT_TRUE(AwaitUse(i, name, true));
    }
    std::printf("%s was given up %.0f ms after the cut, and used again %.0f ms after its end\n",
                name.c_str(), absl::ToDoubleMilliseconds(gone - cut),
                absl::ToDoubleMilliseconds(absl::Now() - mended));
    AwaitAnswers(20);
  }
  StopLoad();
  EXPECT_EQ(failed_, 0);
  std::printf("%ld answers, all right\n", static_cast<long>(answered_.load()));
  ExpectIdle();
}

}  // namespace
}  // namespace baton
