// A few threads and a bounded queue, for work that is too long for gRPC's event threads, such as
// tokenizing.
#ifndef BATON_ROUTER_REQUEST_WORK_POOL_H_
#define BATON_ROUTER_REQUEST_WORK_POOL_H_

#include <functional>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/named_thread.h"

namespace baton::router {

// Thread-safe.
class WorkPool {
 public:
  // Without a thread, the owner calls Turn().
  WorkPool(int thread_count, int queue_capacity) : queue_(queue_capacity) {
    for (int i = 0; i < thread_count; ++i) {
      threads_.push_back(NamedThread("work-pool", [this] {
        pool_of_thread_ = this;
        while (auto work = queue_.Pop()) (*work)();
      }));
    }
  }
  ~WorkPool() { Stop(); }

  // False, dropping nothing, if the queue is full or the pool stopped.
  bool TryRun(std::function<void()> work) { return queue_.TryPush(std::move(work)); }

  // Whether this is one of the pool's threads, on which more work of the same call need not wait.
  bool OwnsThisThread() const { return pool_of_thread_ == this; }

  // Runs what is queued.
  void Turn() {
    while (auto work = queue_.TryPop()) (*work)();
  }

  // Finishes what is queued and joins the threads. By the owner only.
  void Stop() {
    queue_.Close();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  static inline thread_local const WorkPool* pool_of_thread_ = nullptr;
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_WORK_POOL_H_
