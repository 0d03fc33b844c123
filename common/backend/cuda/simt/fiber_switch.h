// Reports to the sanitizers when a host thread switches stacks. Does nothing without them.
#ifndef BATON_COMMON_BACKEND_CUDA_SIMT_FIBER_SWITCH_H_
#define BATON_COMMON_BACKEND_CUDA_SIMT_FIBER_SWITCH_H_

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define BATON_FIBERS_UNDER_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define BATON_FIBERS_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BATON_FIBERS_UNDER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define BATON_FIBERS_UNDER_TSAN 1
#endif
#endif

#if defined(BATON_FIBERS_UNDER_ASAN)
#include <sanitizer/common_interface_defs.h>
#elif defined(BATON_FIBERS_UNDER_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace baton::backend::cuda::emulated {

// A stack that is switched from and to: a fiber's, or the host thread's.
class SwitchedStack {
 public:
  SwitchedStack() = default;
  SwitchedStack(const SwitchedStack&) = delete;
  SwitchedStack& operator=(const SwitchedStack&) = delete;

#if defined(BATON_FIBERS_UNDER_ASAN)
  void SetBounds(void* bottom, size_t size_bytes) { bottom_ = bottom, size_bytes_ = size_bytes; }
  // On this stack, before going to another; `last`: never to come back.
  void Leave(SwitchedStack& to, bool last = false) {
    __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, to.bottom_, to.size_bytes_);
  }
  // On this stack, after coming from another.
  void Enter(SwitchedStack& from) {
    __sanitizer_finish_switch_fiber(fake_stack_, &from.bottom_, &from.size_bytes_);
  }

 private:
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_bytes_ = 0;
#elif defined(BATON_FIBERS_UNDER_TSAN)
  ~SwitchedStack() {
    if (owned_) __tsan_destroy_fiber(fiber_);
  }
  void SetBounds(void*, size_t) {
    fiber_ = __tsan_create_fiber(0);
    owned_ = true;
  }
  void Leave(SwitchedStack& to, bool = false) {
    if (!owned_) fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.fiber_, 0);
  }
  void Enter(SwitchedStack&) {}

 private:
  void* fiber_ = nullptr;
  bool owned_ = false;
#else
  void SetBounds(void*, size_t) {}
  void Leave(SwitchedStack&, bool = false) {}
  void Enter(SwitchedStack&) {}
#endif
};

}  // namespace baton::backend::cuda::emulated

#endif  // BATON_COMMON_BACKEND_CUDA_SIMT_FIBER_SWITCH_H_
