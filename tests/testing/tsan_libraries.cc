// Debian's Abseil and gRPC are built without ThreadSanitizer, which therefore does not see its
// locks and takes all that they guard for races. In the tsan preset these definitions stand before
// the library's, for our code and for gRPC alike: each calls the library's own and tells the
// sanitizer what happened.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <cstring>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace {

constexpr unsigned kWrite = 0;
constexpr unsigned kRead = __tsan_mutex_read_lock;

// The library's definition of a method, by its mangled name.
template <class Method>
Method Library(const char* symbol) {
  Method method = nullptr;
  static_assert(sizeof(Method) == 2 * sizeof(void*), "address and adjustment, as of GCC and Clang");
  void* const address = dlsym(RTLD_NEXT, symbol);
  std::memcpy(&method, &address, sizeof(address));
  return method;
}

}  // namespace

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

// Inside the library, any thread may evaluate the conditions of others, with the lock held although
// the sanitizer has been told of its release already.
class ConditionsUnwatched {
 public:
  ConditionsUnwatched() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~ConditionsUnwatched() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// gRPC and Protobuf are not instrumented either: what they do inside is not judged. The order of
// locks is watched by Abseil itself; here it would be full of gRPC's. Nor is the use of a mutex:
// one that lives on a stack, such as a Notification's, is made and destroyed inside the library,
// and the next one at its place would be taken for it.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:detect_deadlocks=0:report_mutex_bugs=0";
}

// gRPC hands an operation from the thread that starts it to the one that sees it end through
// atomics that are not seen either. Its tag stands for what they order.
extern "C" grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count,
                                                 void* tag, void* reserved) {
  static const auto library =
      reinterpret_cast<decltype(&grpc_call_start_batch)>(dlsym(RTLD_NEXT, "grpc_call_start_batch"));
  __tsan_release(tag);
  return library(call, ops, count, tag, reserved);
}

extern "C" grpc_event grpc_completion_queue_next(grpc_completion_queue* queue,
                                                 gpr_timespec deadline, void* reserved) {
  static const auto library = reinterpret_cast<decltype(&grpc_completion_queue_next)>(
      dlsym(RTLD_NEXT, "grpc_completion_queue_next"));
  const grpc_event event = library(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

extern "C" grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                                  gpr_timespec deadline, void* reserved) {
  static const auto library = reinterpret_cast<decltype(&grpc_completion_queue_pluck)>(
      dlsym(RTLD_NEXT, "grpc_completion_queue_pluck"));
  const grpc_event event = library(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

// Templates of gRPC's headers are compiled into our code and use more of that. Only races whose own
// place is in them are passed over.
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:^grpc::\n"
         "race_top:^google::protobuf::\n"
         // The std::function<void(bool)> inside each of gRPC's callback tags.
         "race_top:^std::function<void (bool)>::\n"
         "race_top:^std::_Function_base::\n"
         "race_top:std::_Any_data\n";
}

#define BATON_LIBRARY_METHOD(signature, symbol) \
  static const auto library = Library<signature>(symbol)

namespace absl {
ABSL_NAMESPACE_BEGIN

// REQUIRES: inlined nowhere; the header declares all of these.
void Mutex::Lock() {
  BATON_LIBRARY_METHOD(void(Mutex::*)(), "_ZN4absl7debian35Mutex4LockEv");
  __tsan_mutex_pre_lock(this, kWrite);
  (this->*library)();
  __tsan_mutex_post_lock(this, kWrite, 0);
}

void Mutex::Unlock() {
  BATON_LIBRARY_METHOD(void(Mutex::*)(), "_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_mutex_pre_unlock(this, kWrite);
  {
    ConditionsUnwatched unwatched;
    (this->*library)();
  }
  __tsan_mutex_post_unlock(this, kWrite);
}

void Mutex::LockWhen(const Condition& condition) {
  BATON_LIBRARY_METHOD(void(Mutex::*)(const Condition&),
                       "_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE");
  __tsan_mutex_pre_lock(this, kWrite);
  {
    ConditionsUnwatched unwatched;
    (this->*library)(condition);
  }
  __tsan_mutex_post_lock(this, kWrite, 0);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  BATON_LIBRARY_METHOD(
      bool(Mutex::*)(const Condition&, Duration),
      "_ZN4absl7debian35Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_mutex_pre_lock(this, kWrite);
  bool met;
  {
    ConditionsUnwatched unwatched;
    met = (this->*library)(condition, timeout);
  }
  __tsan_mutex_post_lock(this, kWrite, 0);
  return met;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  BATON_LIBRARY_METHOD(bool(Mutex::*)(const Condition&, Time),
                       "_ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_mutex_pre_lock(this, kWrite);
  bool met;
  {
    ConditionsUnwatched unwatched;
    met = (this->*library)(condition, deadline);
  }
  __tsan_mutex_post_lock(this, kWrite, 0);
  return met;
}

bool Mutex::TryLock() {
  BATON_LIBRARY_METHOD(bool(Mutex::*)(), "_ZN4absl7debian35Mutex7TryLockEv");
  __tsan_mutex_pre_lock(this, __tsan_mutex_try_lock);
  const bool locked = (this->*library)();
  const unsigned flags = __tsan_mutex_try_lock | (locked ? 0 : __tsan_mutex_try_lock_failed);
  __tsan_mutex_post_lock(this, flags, 0);
  return locked;
}

void Mutex::ReaderLock() {
  BATON_LIBRARY_METHOD(void(Mutex::*)(), "_ZN4absl7debian35Mutex10ReaderLockEv");
  __tsan_mutex_pre_lock(this, kRead);
  (this->*library)();
  __tsan_mutex_post_lock(this, kRead, 0);
}

bool Mutex::ReaderTryLock() {
  BATON_LIBRARY_METHOD(bool(Mutex::*)(), "_ZN4absl7debian35Mutex13ReaderTryLockEv");
  __tsan_mutex_pre_lock(this, kRead | __tsan_mutex_try_lock);
  const bool locked = (this->*library)();
  const unsigned failed = locked ? 0 : __tsan_mutex_try_lock_failed;
  __tsan_mutex_post_lock(this, kRead | __tsan_mutex_try_lock | failed, 0);
  return locked;
}

void Mutex::ReaderUnlock() {
  BATON_LIBRARY_METHOD(void(Mutex::*)(), "_ZN4absl7debian35Mutex12ReaderUnlockEv");
  __tsan_mutex_pre_unlock(this, kRead);
  (this->*library)();
  __tsan_mutex_post_unlock(this, kRead);
}

// A wait gives the lock away and takes it back.
void Mutex::Await(const Condition& condition) {
  BATON_LIBRARY_METHOD(void(Mutex::*)(const Condition&),
                       "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  __tsan_mutex_pre_unlock(this, kWrite);
  __tsan_mutex_post_unlock(this, kWrite);
  {
    ConditionsUnwatched unwatched;
    (this->*library)(condition);
  }
  __tsan_mutex_pre_lock(this, kWrite);
  __tsan_mutex_post_lock(this, kWrite, 0);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  BATON_LIBRARY_METHOD(bool(Mutex::*)(const Condition&, Duration),
                       "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_mutex_pre_unlock(this, kWrite);
  __tsan_mutex_post_unlock(this, kWrite);
  bool met;
  {
    ConditionsUnwatched unwatched;
    met = (this->*library)(condition, timeout);
  }
  __tsan_mutex_pre_lock(this, kWrite);
  __tsan_mutex_post_lock(this, kWrite, 0);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  BATON_LIBRARY_METHOD(void(CondVar::*)(Mutex*), "_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  __tsan_mutex_pre_unlock(mutex, kWrite);
  __tsan_mutex_post_unlock(mutex, kWrite);
  {
    ConditionsUnwatched unwatched;
    (this->*library)(mutex);
  }
  __tsan_mutex_pre_lock(mutex, kWrite);
  __tsan_mutex_post_lock(mutex, kWrite, 0);
}

// WaitWithTimeout of the library comes here, too.
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  BATON_LIBRARY_METHOD(bool(CondVar::*)(Mutex*, Time),
                       "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_mutex_pre_unlock(mutex, kWrite);
  __tsan_mutex_post_unlock(mutex, kWrite);
  bool timed_out;
  {
    ConditionsUnwatched unwatched;
    timed_out = (this->*library)(mutex, deadline);
  }
  __tsan_mutex_pre_lock(mutex, kWrite);
  __tsan_mutex_post_lock(mutex, kWrite, 0);
  return timed_out;
}

// What is done before a notification is seen after it, through an atomic that the library writes
// and either the library reads, or its header inside our code.
void Notification::Notify() {
  BATON_LIBRARY_METHOD(void(Notification::*)(), "_ZN4absl7debian312Notification6NotifyEv");
  __tsan_release(this);
  __tsan_release(reinterpret_cast<char*>(this) + sizeof(Mutex));  // the atomic
  (this->*library)();
}

void Notification::WaitForNotification() const {
  BATON_LIBRARY_METHOD(void(Notification::*)() const,
                       "_ZNK4absl7debian312Notification19WaitForNotificationEv");
  (this->*library)();
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  BATON_LIBRARY_METHOD(
      bool(Notification::*)(Duration) const,
      "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = (this->*library)(timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
