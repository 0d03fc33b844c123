#include "common/base/shutdown_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

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

TEST(ShutdownSignalTest, ADrainNeedsNoFreeFileDescriptor) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer looks at memory through pipes";
#endif
  ShutdownSignal signals;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  absl::Notification drained;
  std::thread server([&] {
    signals.DrainOnSignal(
        [&] {
          kill(getpid(), SIGTERM);
          drained.WaitForNotification();
        },
        [&] { drained.Notify(); });
  });
  // A thread of this name waits for the signals of DrainOnSignal.
  const auto waits = [] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "comm");
      std::string name;
      std::getline(file, name);
      if (name == "signals") return true;
    }
    return false;
  };
  const absl::Time end = absl::Now() + absl::Minutes(1);
  while (!waits() && absl::Now() < end) std::this_thread::yield();
  const int lowest = dup(STDERR_FILENO);
  close(lowest);
  const rlimit none = {static_cast<rlim_t>(lowest), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(dup(STDERR_FILENO), -1);
  kill(getpid(), SIGTERM);
  server.join();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(drained.HasBeenNotified());
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
