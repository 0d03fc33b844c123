// Runs the ends of a worker's device links: one thread polls all of them, as a device wants its
// communicators used from one thread; another one aborts those that have failed.
#ifndef BATON_COMMON_TRANSFER_DEVICE_LINK_RUNNER_H_
#define BATON_COMMON_TRANSFER_DEVICE_LINK_RUNNER_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/transfer/device_link_end.h"

namespace baton::transfer {

// Thread-safe.
class DeviceLinkRunner {
 public:
  // An abort that takes longer than `abort_timeout` is taken to hang: stuck() is true from then on.
  DeviceLinkRunner(const Clock& clock, absl::Duration abort_timeout = absl::Seconds(10));
  // Fails all ends. Waits at most abort_timeout for aborts that hang; their thread and their links
  // live on then, as nothing can end them but the end of the process.
  ~DeviceLinkRunner();

  // Runs the end until it has failed.
  void Add(std::shared_ptr<DeviceLinkEnd> end);
  // No link can be trusted to end any more: make no new ones.
  bool stuck() const;
  int open_ends() const;
  // Links of failed ends that are not aborted yet.
  int aborting() const;

 private:
  // What the ends' wakers and the thread that aborts keep alive.
  struct Wakeup {
    absl::Mutex mutex;
    bool woken ABSL_GUARDED_BY(mutex) = false;
  };
  struct Aborts {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<backend::DeviceLink>> waiting ABSL_GUARDED_BY(mutex);
    bool running ABSL_GUARDED_BY(mutex) = false;
    absl::Duration since ABSL_GUARDED_BY(mutex);  // of the one that runs
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    bool stopped ABSL_GUARDED_BY(mutex) = false;
  };
  void Run();
  static void RunAborts(std::shared_ptr<Aborts> aborts, const Clock& clock);
  void Abort(DeviceLinkEnd& end);

  const Clock& clock_;
  const absl::Duration abort_timeout_;
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();
  const std::shared_ptr<Aborts> aborts_ = std::make_shared<Aborts>();
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<DeviceLinkEnd>> ends_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread aborting_thread_;
  std::thread thread_;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_DEVICE_LINK_RUNNER_H_
