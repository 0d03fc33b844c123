// DecodeService: checks requests and hands them to the loop.
#ifndef BATON_DECODE_WORKER_SERVICE_H_
#define BATON_DECODE_WORKER_SERVICE_H_

#include <atomic>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "baton/internal/v1/decode.grpc.pb.h"
#include "common/engine/engine.h"
#include "common/security/shared_secret.h"
#include "common/tracing/tracer.h"
#include "common/worker/open_calls.h"
#include "decode_worker/grammar_request.h"
#include "decode_worker/loop.h"
#include "decode_worker/metrics.h"

namespace baton::decode_worker {

// Thread-safe.
class DecodeService final : public internal::v1::DecodeService::CallbackService {
 public:
  // All references must outlive it, and so must `tracer` and `structured_output`; null: there is
  // none. Callers must have `secret`, unless it is null. `max_request_time` bounds a call that has
  // no deadline or a later one.
  DecodeService(uint64_t epoch, const engine::Engine& engine, DecodeLoop& loop,
                DecodeMetrics& metrics, std::shared_ptr<worker::OpenCalls> open_calls,
                security::SharedSecret* secret, tracing::Tracer* tracer,
                grammar::StructuredOutput* structured_output = nullptr,
                absl::Duration max_request_time = absl::Minutes(30))
      : epoch_(epoch),
        engine_(engine),
        loop_(loop),
        metrics_(metrics),
        open_calls_(std::move(open_calls)),
        secret_(secret),
        tracer_(tracer),
        structured_output_(structured_output),
        max_request_time_(max_request_time) {}

  grpc::ServerWriteReactor<internal::v1::DecodeResponse>* Decode(
      grpc::CallbackServerContext* context, const internal::v1::DecodeRequest* request) override;

 private:
  // Submits the sequence once the grammar is compiled. `gone`: the caller has left.
  void SubmitCompiled(const internal::v1::DecodeRequest& request,
                      std::unique_ptr<Sequence> sequence,
                      std::shared_ptr<const std::atomic<bool>> gone);

  const uint64_t epoch_;
  const engine::Engine& engine_;
  DecodeLoop& loop_;
  DecodeMetrics& metrics_;
  const std::shared_ptr<worker::OpenCalls> open_calls_;
  security::SharedSecret* const secret_;
  tracing::Tracer* const tracer_;
  grammar::StructuredOutput* const structured_output_;
  const absl::Duration max_request_time_;
  std::atomic<uint64_t> next_call_id_{1};
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SERVICE_H_
