#include "common/transfer/device_link_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"

namespace baton::transfer {
namespace {

// An operation of 4 MiB takes 200 µs and more. Communicators have no event to wait for.
constexpr absl::Duration kPoll = absl::Microseconds(50);
// Deadlines are kept to within that, also if the clock is not the machine's.
constexpr absl::Duration kLongestWait = absl::Milliseconds(50);

}  // namespace

DeviceLinkRunner::DeviceLinkRunner(const Clock& clock, absl::Duration abort_timeout)
    : clock_(clock), abort_timeout_(abort_timeout) {
  aborting_thread_ = NamedThread(
      "link-aborts", [aborts = aborts_, &clock] { RunAborts(std::move(aborts), clock); });
  thread_ = NamedThread("link-runner", [this] { Run(); });
}

DeviceLinkRunner::~DeviceLinkRunner() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  {
    absl::MutexLock lock(&wakeup_->mutex);
    wakeup_->woken = true;
  }
  thread_.join();
  bool stopped;
  {
    absl::MutexLock lock(&aborts_->mutex);
    aborts_->stopping = true;
    stopped = aborts_->mutex.AwaitWithTimeout(absl::Condition(&aborts_->stopped), abort_timeout_);
  }
  if (stopped) {
    aborting_thread_.join();
    return;
  }
  BATON_LOG(Error) << "aborting a device link hangs: its thread is left behind";
  aborting_thread_.detach();
}

void DeviceLinkRunner::Add(std::shared_ptr<DeviceLinkEnd> end) {
  end->SetWaker([wakeup = wakeup_] {
    absl::MutexLock lock(&wakeup->mutex);
    wakeup->woken = true;
  });
  {
    absl::MutexLock lock(&mutex_);
    ends_.push_back(std::move(end));
  }
  absl::MutexLock lock(&wakeup_->mutex);
  wakeup_->woken = true;
}

bool DeviceLinkRunner::stuck() const {
  absl::MutexLock lock(&aborts_->mutex);
  return aborts_->running && clock_.SinceStart() - aborts_->since > abort_timeout_;
}

int DeviceLinkRunner::open_ends() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(
      std::count_if(ends_.begin(), ends_.end(), [](const auto& end) { return end->open(); }));
}

int DeviceLinkRunner::aborting() const {
  absl::MutexLock lock(&aborts_->mutex);
  return static_cast<int>(aborts_->waiting.size()) + aborts_->running;
}

void DeviceLinkRunner::Abort(DeviceLinkEnd& end) {
  std::unique_ptr<backend::DeviceLink> link = end.TakeLink();
  if (link == nullptr) return;
  absl::MutexLock lock(&aborts_->mutex);
  aborts_->waiting.push_back(std::move(link));
}

void DeviceLinkRunner::RunAborts(std::shared_ptr<Aborts> aborts, const Clock& clock) {
  while (true) {
    std::unique_ptr<backend::DeviceLink> link;
    {
      absl::MutexLock lock(&aborts->mutex);
      const auto due = [&aborts]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(aborts->mutex) {
        return aborts->stopping || !aborts->waiting.empty();
      };
      aborts->mutex.Await(absl::Condition(&due));
      if (aborts->waiting.empty()) {
        aborts->stopped = true;
        return;
      }
      link = std::move(aborts->waiting.front());
      aborts->waiting.erase(aborts->waiting.begin());
      aborts->running = true;
      aborts->since = clock.SinceStart();
    }
    link->Abort();
    link.reset();
    absl::MutexLock lock(&aborts->mutex);
    aborts->running = false;
  }
}

void DeviceLinkRunner::Run() {
  while (true) {
    std::vector<std::shared_ptr<DeviceLinkEnd>> ends;
    bool stopping;
    {
      absl::MutexLock lock(&wakeup_->mutex);
      wakeup_->woken = false;
    }
    {
      absl::MutexLock lock(&mutex_);
      ends = ends_;
      stopping = stopping_;
    }
    absl::Duration wait = absl::InfiniteDuration();
    for (const std::shared_ptr<DeviceLinkEnd>& end : ends) {
      if (stopping) {
        end->Fail(MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this worker stops"));
      }
      const absl::Duration next = end->Step();
      if (end->failed()) {
        Abort(*end);
        absl::MutexLock lock(&mutex_);
        ends_.erase(std::find(ends_.begin(), ends_.end(), end));
        continue;
      }
      wait = std::min(wait, next == absl::ZeroDuration() ? kPoll : next - clock_.SinceStart());
    }
    if (stopping) return;
    absl::MutexLock lock(&wakeup_->mutex);
    wakeup_->mutex.AwaitWithTimeout(absl::Condition(&wakeup_->woken),
                                    wait == absl::InfiniteDuration()
                                        ? wait
                                        : std::clamp(wait, absl::ZeroDuration(), kLongestWait));
  }
}

}  // namespace baton::transfer
