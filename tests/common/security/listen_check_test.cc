#include "common/security/listen_check.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace baton::security {
namespace {

TEST(ListenCheck, KnowsLoopback) {
  for (const char* loopback :
       {"127.0.0.1:1", "127.9.9.9:0", "localhost:50051", "[::1]:50051", "::1:50051"}) {
    EXPECT_TRUE(IsLoopback(loopback)) << loopback;
  }
  for (const char* other : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "128.0.0.1:1", "router:50051",
                            "localhost.example:1", "127.0.0.1.example:1", "127.0.0:1", ":1", ""}) {
    EXPECT_FALSE(IsLoopback(other)) << other;
  }
}

TEST(ListenCheck, SaysWhatToDo) {
  EXPECT_TRUE(CheckLoopback("--listen", "127.0.0.1:1", "--api-keys FILE").ok());
  const absl::Status refused = CheckLoopback("--listen", "0.0.0.0:1", "--api-keys FILE");
  EXPECT_EQ(ErrorReason(refused), "NEEDS_CREDENTIALS");
  EXPECT_EQ(ErrorField(refused), "--listen");
  for (const char* part : {"0.0.0.0:1", "--api-keys FILE", "--insecure"}) {
    EXPECT_NE(refused.message().find(part), absl::string_view::npos) << refused;
  }
}

}  // namespace
}  // namespace baton::security
