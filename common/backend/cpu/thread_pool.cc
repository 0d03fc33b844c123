#include "common/backend/cpu/thread_pool.h"

#include "common/base/check.h"
#include "common/base/named_thread.h"

namespace baton::backend {
namespace {

// About 20 us: longer than the serial gap between two loops of a forward pass, far shorter than a
// scheduler's time slice.
constexpr int kSpinCount = 500;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  BATON_CHECK_GE(thread_count, 1);
  for (int i = 1; i < thread_count; ++i)
    threads_.push_back(NamedThread("cpu-pool", [this, i] { ServeAs(i); }));
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  wake_count_.fetch_add(1);
  wake_count_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int task_count, Body body) {
  if (threads_.empty() || task_count <= 1) {
    for (int task = 0; task < task_count; ++task) body(task, 0);
    return;
  }
  body_.store(&body, std::memory_order_relaxed);
  task_count_.store(static_cast<uint32_t>(task_count), std::memory_order_relaxed);
  finished_count_.store(0, std::memory_order_relaxed);
  const uint64_t loop = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(loop << 32 | static_cast<uint32_t>(task_count), std::memory_order_release);
  wake_count_.fetch_add(1, std::memory_order_release);
  wake_count_.notify_all();

  TakeTasks(0);
  const uint32_t all = static_cast<uint32_t>(task_count);
  for (int spin = 0;; ++spin) {
    const uint32_t finished = finished_count_.load(std::memory_order_acquire);
    if (finished == all) return;
    if (spin < kSpinCount) {
      Pause();
    } else {
      finished_count_.wait(finished, std::memory_order_acquire);
    }
  }
}

void ThreadPool::TakeTasks(int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket) != 0) {
    const Body* body = body_.load(std::memory_order_relaxed);
    const uint32_t task_count = task_count_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
    const uint32_t task = task_count - static_cast<uint32_t>(ticket);
    (*body)(static_cast<int>(task), thread);
    if (finished_count_.fetch_add(1, std::memory_order_acq_rel) + 1 == task_count) {
      finished_count_.notify_one();
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::ServeAs(int thread) {
  uint32_t woken = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    TakeTasks(thread);
    for (int spin = 0; spin < kSpinCount; ++spin) {
      if (wake_count_.load(std::memory_order_acquire) != woken) break;
      Pause();
    }
    wake_count_.wait(woken, std::memory_order_acquire);
    woken = wake_count_.load(std::memory_order_acquire);
  }
}

}  // namespace baton::backend
