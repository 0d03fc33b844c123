#include "common/base/shutdown_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/synchronization/notification.h"

namespace baton {
namespace {

TEST(ShutdownSignalTest, ReportsEachSignalOnce) {
  ShutdownSignal signals;
  EXPECT_FALSE(signals.Wait(absl::ZeroDuration()));
  kill(getpid(), SIGTERM);
  kill(getpid(), SIGINT);
  EXPECT_TRUE(signals.Wait());
  EXPECT_TRUE(signals.Wait(absl::ZeroDuration()));
  EXPECT_FALSE(signals.Wait(absl::Milliseconds(1)));
}

TEST(ShutdownSignalTest, OneSignalDrains) {
  ShutdownSignal signals;
  kill(getpid(), SIGINT);
  bool drained = false, stopped = false;
  signals.DrainOnSignal([&] { drained = true; }, [&] { stopped = true; });
  EXPECT_TRUE(drained);
  EXPECT_FALSE(stopped);
}

TEST(ShutdownSignalTest, ASecondSignalStopsADrain) {
  ShutdownSignal signals;
  kill(getpid(), SIGTERM);
  absl::Notification stopped;
  signals.DrainOnSignal(
      [&] {
        kill(getpid(), SIGTERM);
        stopped.WaitForNotification();  // a drain that would never end by itself
      },
      [&] { stopped.Notify(); });
}

TEST(ShutdownWatchTest, CallsForEachSignal) {
  ShutdownSignal blocks_signals;
  absl::Notification calls[2];
  int count = 0;  // used by the watch's thread
  ShutdownWatch watch([&] { calls[count++].Notify(); });
  for (absl::Notification& called : calls) {
    kill(getpid(), SIGINT);
    called.WaitForNotification();
  }
}

}  // namespace
}  // namespace baton
