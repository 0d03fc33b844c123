// PrefillService: checks requests and hands them to the loop. The KV payload never becomes a
// Protobuf message, so the method is registered raw.
#ifndef BATON_PREFILL_WORKER_SERVICE_H_
#define BATON_PREFILL_WORKER_SERVICE_H_

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/engine/engine.h"
#include "prefill_worker/loop.h"

namespace baton::prefill_worker {

struct Identity {
  std::string worker_id;
  uint64_t epoch = 0;
};

// Thread-safe.
class PrefillServer final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                                internal::v1::PrefillService::Service> {
 public:
  PrefillServer(Identity identity, const engine::Engine& engine, PrefillLoop& loop,
                PrefillMetrics& metrics)
      : identity_(std::move(identity)), engine_(engine), loop_(loop), metrics_(metrics) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override;

 private:
  absl::Status Check(const internal::v1::PrefillRequest& request) const;

  const Identity identity_;
  const engine::Engine& engine_;
  PrefillLoop& loop_;
  PrefillMetrics& metrics_;
  std::atomic<uint64_t> next_job_id_{1};
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_SERVICE_H_
