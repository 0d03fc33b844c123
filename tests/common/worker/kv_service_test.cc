#include "common/worker/kv_service.h"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

TEST(KvServiceTest, AWorkerThatListensOnAllInterfacesIsCalledWhereItCalledFrom) {
  EXPECT_EQ(ReachableAddress("10.0.0.1:7", "ipv4:10.0.0.9:4711"), "10.0.0.1:7");
  EXPECT_EQ(ReachableAddress("worker-0.pods:7", "ipv4:10.0.0.9:4711"), "worker-0.pods:7");
  EXPECT_EQ(ReachableAddress("0.0.0.0:7", "ipv4:10.0.0.9:4711"), "10.0.0.9:7");
  EXPECT_EQ(ReachableAddress("[::]:7", "ipv4:10.0.0.9:4711"), "10.0.0.9:7");
  EXPECT_EQ(ReachableAddress("[::]:7", "ipv6:%5Bfd00::9%5D:4711"), "[fd00::9]:7");
  EXPECT_EQ(ReachableAddress("[::]:7", "ipv6:[fd00::9]:4711"), "[fd00::9]:7");
  // What has no host stays as it is: calls to it fail.
  for (const char* peer : {"", "unix:/run/x", "ipv4", "ipv4:", "inproc:1:2"}) {
    EXPECT_EQ(ReachableAddress("0.0.0.0:7", peer), "0.0.0.0:7") << peer;
  }
}

}  // namespace
}  // namespace baton::worker
