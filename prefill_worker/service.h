// PrefillService: checks requests and hands them to the loop. The KV payload never becomes a
// Protobuf message, so the method is registered raw.
#ifndef BATON_PREFILL_WORKER_SERVICE_H_
#define BATON_PREFILL_WORKER_SERVICE_H_

#include <atomic>
#include <memory>
#include <utility>

#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/engine/engine.h"
#include "common/security/shared_secret.h"
#include "common/tracing/tracer.h"
#include "common/worker/open_calls.h"
#include "prefill_worker/loop.h"
#include "prefill_worker/metrics.h"

namespace baton::prefill_worker {

// Thread-safe.
class PrefillService final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                                 internal::v1::PrefillService::Service> {
 public:
  // All references must outlive it. A request for another epoch than `epoch` is refused, and so
  // is a caller without `secret`, unless that is null. `tracer` may be null: nothing is traced.
  PrefillService(uint64_t epoch, const engine::Engine& engine, PrefillLoop& loop,
                 PrefillMetrics& metrics, std::shared_ptr<worker::OpenCalls> open_calls,
                 security::SharedSecret* secret, tracing::Tracer* tracer)
      : epoch_(epoch),
        engine_(engine),
        loop_(loop),
        metrics_(metrics),
        open_calls_(std::move(open_calls)),
        secret_(secret),
        tracer_(tracer) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override;

 private:
  const uint64_t epoch_;
  const engine::Engine& engine_;
  PrefillLoop& loop_;
  PrefillMetrics& metrics_;
  const std::shared_ptr<worker::OpenCalls> open_calls_;
  security::SharedSecret* const secret_;
  tracing::Tracer* const tracer_;
  std::atomic<uint64_t> next_job_id_{1};
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_SERVICE_H_
