// PrefillService: checks requests and hands them to the loop. The KV payload never becomes a
// Protobuf message, so the method is registered raw.
#ifndef BATON_PREFILL_WORKER_SERVICE_H_
#define BATON_PREFILL_WORKER_SERVICE_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/engine/engine.h"
#include "prefill_worker/loop.h"

namespace baton::prefill_worker {

struct Identity {
  std::string worker_id;
  uint64_t epoch = 0;
};

// The calls that are open: those whose last byte has not been sent. Thread-safe.
class OpenCalls {
 public:
  void Enter() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Leave() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }
  // Until there is none, Release() is called, or `timeout` is over.
  void AwaitNone(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &OpenCalls::NoneOrReleased), timeout);
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    released_ = true;
  }

 private:
  bool NoneOrReleased() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return count_ == 0 || released_;
  }

  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

// Thread-safe.
class PrefillService final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                                internal::v1::PrefillService::Service> {
 public:
  PrefillService(Identity identity, const engine::Engine& engine, PrefillLoop& loop,
                PrefillMetrics& metrics)
      : identity_(std::move(identity)), engine_(engine), loop_(loop), metrics_(metrics) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override;
  OpenCalls& open_calls() { return *open_calls_; }

 private:
  const Identity identity_;
  const engine::Engine& engine_;
  PrefillLoop& loop_;
  PrefillMetrics& metrics_;
  // Shared with the calls, of which one may be destroyed late.
  const std::shared_ptr<OpenCalls> open_calls_ = std::make_shared<OpenCalls>();
  std::atomic<uint64_t> next_job_id_{1};
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_SERVICE_H_
