// A few threads that run one loop at a time.
#ifndef BATON_COMMON_BACKEND_CPU_THREAD_POOL_H_
#define BATON_COMMON_BACKEND_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace baton::backend {

// Several workers share a few cores: a thread without a task spins for some microseconds, then
// sleeps, and Run never waits for a thread that has taken no task of its loop.
//
// Thread: owned by the thread that calls Run. The destructor joins the threads.
class ThreadPool {
 public:
  // The caller of Run is one of the `thread_count` threads.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, task_count), with thread in [0, thread_count());
  // all writes of the tasks are visible when it returns. REQUIRES: not called from a task.
  using Body = absl::FunctionRef<void(int task, int thread)>;
  void Run(int task_count, Body body);

 private:
  void ServeAs(int thread);
  // Runs tasks of the loop that `ticket_` shows until none is left.
  void TakeTasks(int thread);

  // High half: the number of the loop. Low half: its tasks still to take. One is taken by a
  // compare-exchange, so body_ and task_count_, which change only while none is left, are the same
  // loop's if it succeeds.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<const Body*> body_{nullptr};
  std::atomic<uint32_t> task_count_{0};
  std::atomic<uint32_t> finished_count_{0};
  std::atomic<uint32_t> wake_count_{0};  // what sleepers wait for
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_THREAD_POOL_H_
