// Locks of a mutex that is held for no more than some microseconds. They try for about that long
// before they sleep: a thread that sleeps and wakes takes longer than the wait. Abseil's own locks
// sleep at once where readers are involved.
#ifndef BATON_COMMON_BASE_BRIEF_LOCK_H_
#define BATON_COMMON_BASE_BRIEF_LOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton {

template <class Try>
bool TryBriefly(Try try_lock) {
  constexpr int kTries = 200;  // some 5 µs
  for (int i = 0; i < kTries; ++i) {
    if (try_lock()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return false;
}

class ABSL_SCOPED_LOCKABLE BriefLock {
 public:
  explicit BriefLock(absl::Mutex* mutex)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS : mutex_(*mutex) {
    if (!TryBriefly([mutex] { return mutex->TryLock(); })) mutex_.Lock();
  }
  ~BriefLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  BriefLock(const BriefLock&) = delete;
  BriefLock& operator=(const BriefLock&) = delete;

 private:
  absl::Mutex& mutex_;
};

class ABSL_SCOPED_LOCKABLE BriefReaderLock {
 public:
  explicit BriefReaderLock(absl::Mutex* mutex)
      ABSL_SHARED_LOCK_FUNCTION(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS : mutex_(*mutex) {
    if (!TryBriefly([mutex] { return mutex->ReaderTryLock(); })) mutex_.ReaderLock();
  }
  ~BriefReaderLock() ABSL_UNLOCK_FUNCTION() { mutex_.ReaderUnlock(); }
  BriefReaderLock(const BriefReaderLock&) = delete;
  BriefReaderLock& operator=(const BriefReaderLock&) = delete;

 private:
  absl::Mutex& mutex_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_BRIEF_LOCK_H_
