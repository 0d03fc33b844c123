#include "client/cpp/retries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "client/cpp/client.h"
#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/seed.h"

namespace baton::client {
namespace {

using ::baton::testing::FakeClock;

TEST(RetriesTest, WhichErrorsAreRetryable) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status error(static_cast<absl::StatusCode>(code), "no");
    const bool cut = absl::IsUnavailable(error) || absl::IsCancelled(error);
    EXPECT_EQ(IsRetryable(error), cut) << error;
    if (error.ok()) continue;
    EXPECT_EQ(IsRetryable(WithRetryAfter(error, absl::Seconds(1))),
              cut || absl::IsResourceExhausted(error))
        << error;
    EXPECT_EQ(IsRetryable(MakeError(error.code(), "REASON", "no")), absl::IsUnavailable(error))
        << error;
  }
}

TEST(RetriesTest, BackoffDoublesUpToItsLimit) {
  const FakeClock clock;
  Retries retries(absl::Seconds(600), 7, clock, [] { return 0.5; });
  for (const double bound_s : {0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0}) {
    EXPECT_EQ(retries.PauseAfter(absl::UnavailableError("no")), absl::Seconds(bound_s) / 2);
  }
  EXPECT_EQ(retries.PauseAfter(absl::UnavailableError("no")), std::nullopt);
}

TEST(RetriesTest, ATimeToRetryThatIsNegativeOrEndless) {
  const FakeClock clock;
  Retries retries(absl::InfiniteDuration(), 2, clock, [] { return 0.5; });
  const absl::Status error = absl::UnavailableError("no");
  EXPECT_EQ(retries.PauseAfter(WithRetryAfter(error, absl::Seconds(-9))), absl::Seconds(0.1));
  EXPECT_EQ(retries.TimeLeft(), absl::InfiniteDuration());
  Retries limited(absl::Seconds(600), 2, clock, [] { return 0.5; });
  EXPECT_EQ(limited.PauseAfter(WithRetryAfter(error, absl::InfiniteDuration())), std::nullopt);
}

absl::Status RandomError(std::mt19937_64* random) {
  const int kind = static_cast<int>((*random)() % 6);
  const absl::Status full = absl::ResourceExhaustedError("full");
  const absl::Duration after = absl::Milliseconds((*random)() % 4000);
  return kind == 0   ? absl::UnavailableError("gone")
         : kind == 1 ? WithRetryAfter(absl::UnavailableError("gone"), after)
         : kind <= 3 ? WithRetryAfter(full, after)
         : kind == 4 ? absl::CancelledError("cut")
                     : full;  // never fits
}

// Random histories against the rules, written down once more.
TEST(RetriesTest, Histories) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  int retried = 0, out_of_retries = 0, out_of_time = 0, not_retryable = 0;
  for (int history = 0; history < 2000; ++history) {
    FakeClock clock;
    const absl::Duration start = clock.SinceStart();
    const absl::Duration timeout = absl::Milliseconds(1 + random() % 20000);
    const int max_retries = static_cast<int>(random() % 6);
    double drawn = 0;
    Retries retries(timeout, max_retries, clock,
                    [&] { return drawn = std::uniform_real_distribution<double>(0, 1)(random); });
    for (int made = 0;; ++made) {
      clock.Advance(absl::Milliseconds(random() % 500));  // the attempt
      const absl::Duration left = timeout - (clock.SinceStart() - start);
      EXPECT_EQ(retries.TimeLeft(), std::max(absl::ZeroDuration(), left));
      const absl::Status error = RandomError(&random);
      const absl::Duration asked = ErrorRetryAfter(error).value_or(absl::ZeroDuration());
      const auto pause = retries.PauseAfter(error);
      const absl::Duration expected =
          asked + std::min(absl::Seconds(5), absl::Milliseconds(200) * (1 << made)) * drawn;
      if (made >= max_retries || !IsRetryable(error) || expected >= left) {
        ASSERT_EQ(pause, std::nullopt) << error;
        ++(made >= max_retries ? out_of_retries : IsRetryable(error) ? out_of_time : not_retryable);
        break;
      }
      ASSERT_TRUE(pause.has_value()) << error;
      EXPECT_LT(absl::AbsDuration(*pause - expected), absl::Microseconds(1));
      ++retried;
      clock.Advance(*pause);
    }
  }
  // Every rule has been at work.
  for (const int count : {retried, out_of_retries, out_of_time, not_retryable})
    EXPECT_GT(count, 50);
}

}  // namespace
}  // namespace baton::client
