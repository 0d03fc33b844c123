#include "decode_worker/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace baton::decode_worker {
namespace {

std::unique_ptr<Sequence> Request(uint64_t id, const std::string& tenant, int tokens) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->call = std::make_shared<Call>();
  sequence->call->tenant = tenant;
  sequence->tokens.resize(static_cast<size_t>(tokens));
  return sequence;
}

TEST(FairQueueTest, OneTenantIsFirstComeFirstServed) {
  FairQueue queue(100);
  for (uint64_t id = 1; id <= 5; ++id) queue.Push(Request(id, "a", 1000 * static_cast<int>(id)));
  for (uint64_t id = 1; id <= 5; ++id) {
    EXPECT_EQ(queue.Front()->id, id);
    EXPECT_EQ(queue.Front()->id, id) << "looking takes no turn";
    EXPECT_EQ(queue.Pop()->id, id);
  }
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.Front(), nullptr);
}

TEST(FairQueueTest, TenantsShareByTokensNotByRequests) {
  FairQueue queue(100);
  for (uint64_t id = 0; id < 400; ++id) queue.Push(Request(id, "small", 10));
  for (uint64_t id = 1000; id < 1100; ++id) queue.Push(Request(id, "large", 400));
  std::map<std::string, int64_t> tokens;
  while (tokens["small"] + tokens["large"] < 6000) {
    const std::unique_ptr<Sequence> next = queue.Pop();
    tokens[next->call->tenant] += static_cast<int64_t>(next->tokens.size());
  }
  // Within one quantum and one request of each other.
  EXPECT_NEAR(static_cast<double>(tokens["small"]), static_cast<double>(tokens["large"]), 500);
}

TEST(FairQueueTest, WhatIsGeneratedCounts) {
  FairQueue queue(100);
  for (uint64_t id = 0; id < 100; ++id) {
    queue.Push(Request(id, "brief", 50));
    queue.Push(Request(1000 + id, "chatty", 50));
  }
  std::map<std::string, int> served;
  for (int i = 0; i < 60; ++i) {
    const std::string tenant = queue.Pop()->call->tenant;
    ++served[tenant];
    if (tenant == "chatty") queue.Charge(tenant, 150);  // four times the tokens in all
  }
  EXPECT_GT(served["brief"], 3 * served["chatty"]);
  EXPECT_GT(served["chatty"], 5) << "a debt is worked off";
}

// Names of tenants come from requests: however many there are, what is remembered is bounded, and
// the next tenant's debt counts all the same.
TEST(FairQueueTest, ManyDebtorsDoNotSetNewOnesFree) {
  FairQueue queue(100);
  for (uint64_t id = 0; id < 30; ++id) {
    queue.Push(Request(id, "brief", 50));
    queue.Push(Request(1000 + id, "chatty", 50));
  }
  for (int i = 0; i < 5000; ++i) queue.Charge(std::to_string(i), 10'000);
  EXPECT_LE(queue.tenant_count(), 4096u);
  std::map<std::string, int> served;
  for (int i = 0; i < 20; ++i) {
    const std::string tenant = queue.Pop()->call->tenant;
    ++served[tenant];
    if (tenant == "chatty") queue.Charge(tenant, 450);
  }
  EXPECT_GT(served["brief"], 3 * served["chatty"]);
}

TEST(FairQueueTest, RemovedOnesLeaveNoTurnBehind) {
  FairQueue queue(10);
  queue.Push(Request(1, "a", 5));
  queue.Push(Request(2, "b", 5));
  queue.Push(Request(3, "a", 5));
  EXPECT_EQ(queue.Remove(9), nullptr);
  EXPECT_EQ(queue.Remove(1)->id, 1u);
  EXPECT_EQ(queue.Remove(3)->id, 3u);
  EXPECT_EQ(queue.size(), 1);
  EXPECT_EQ(queue.Pop()->id, 2u);
  queue.Push(Request(4, "a", 5));
  EXPECT_EQ(queue.Pop()->id, 4u);
}

}  // namespace
}  // namespace baton::decode_worker
