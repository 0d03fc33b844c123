#include "common/kv_store/store_pause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/fake_clock.h"

namespace baton::kv_store {
namespace {

TEST(StorePauseTest, DoublesUntilACallSucceeds) {
  testing::FakeClock clock;
  StorePause pause(absl::Seconds(1), absl::Seconds(3), clock);
  EXPECT_TRUE(pause.Check().ok());
  for (const int seconds : {1, 2, 3, 3}) {
    EXPECT_EQ(pause.Failed(absl::UnavailableError("gone")).message(), "gone");
    // Of calls that began before: no longer pause.
    (void)pause.Failed(absl::UnavailableError("gone too"));
    clock.Advance(absl::Seconds(seconds) - absl::Milliseconds(1));
    EXPECT_EQ(pause.Check().code(), absl::StatusCode::kUnavailable) << seconds;
    EXPECT_THAT(std::string(pause.Check().message()), ::testing::HasSubstr("gone"));
    clock.Advance(absl::Milliseconds(1));
    EXPECT_TRUE(pause.Check().ok()) << seconds;
  }
  pause.Succeeded();
  (void)pause.Failed(absl::UnavailableError("gone"));
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(pause.Check().ok());
}

}  // namespace
}  // namespace baton::kv_store
