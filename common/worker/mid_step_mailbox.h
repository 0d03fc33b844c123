// Messages to a loop that do not wait for the end of its step.
//
// On a CPU, a decode step takes tens of milliseconds, one of prompts may take seconds. A request
// that comes meanwhile would wait for its end before its prompt is even asked for, a first token
// before it is sent, and another worker's fetch before the cached KV is. While the loop is in a
// step, a thread of this object handles such messages in its place.
#ifndef BATON_COMMON_WORKER_MID_STEP_MAILBOX_H_
#define BATON_COMMON_WORKER_MID_STEP_MAILBOX_H_

#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "common/base/mailbox.h"

namespace baton::worker {

// Post is thread-safe, all else is of the loop's thread. A message is handled once: by the loop, or
// during a step by the other thread, which handles one at a time and none outside of steps. So what
// messages share with the loop needs no lock. A message may only do what is safe beside a step that
// reads its sequences' tokens and blocks.
class MidStepMailbox {
 public:
  // `mid_step`: a step runs, so this is not the loop's thread.
  using Message = absl::AnyInvocable<void(bool mid_step)>;

  // `mailbox`: the loop's. Without `own_thread`, all messages wait for the loop.
  MidStepMailbox(std::shared_ptr<Mailbox> mailbox, bool own_thread);
  // REQUIRES: Stop() has been called.
  ~MidStepMailbox();
  // Joins the thread. For the end of the loop, which must have closed its mailbox. What holds on to
  // this object may still call Post.
  void Stop();

  // Returns false and drops the message if the loop's mailbox is closed. Messages posted by one
  // thread are handled in order, but may overtake what is in the loop's mailbox.
  bool Post(Message message);

  // Runs a step, during which messages are handled.
  template <class Step>
  auto During(const Step& step) {
    Begin();
    auto results = step();
    End();
    return results;
  }
  // Whether messages were handled during a step since the last call.
  bool TakeHandled() { return std::exchange(handled_, false); }

 private:
  struct Posted {
    Message message;  // null once handled
  };

  void Begin();
  void End();
  void Run();
  static void Handle(Posted& posted, bool mid_step);
  // Forgets those at the front that have been handled.
  void Prune() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (in_step_ && !posted_.empty());
  }
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !handling_; }

  const std::shared_ptr<Mailbox> mailbox_;
  const bool own_thread_;
  absl::Mutex mutex_;
  std::deque<std::shared_ptr<Posted>> posted_ ABSL_GUARDED_BY(mutex_);
  bool in_step_ ABSL_GUARDED_BY(mutex_) = false;
  bool handling_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool handled_ = false;  // as messages: of the loop's thread, or of the other during a step
  std::thread thread_;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_MID_STEP_MAILBOX_H_
