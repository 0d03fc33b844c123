#include "common/prefill/service.h"

#include <utility>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/rpc/grpc_status.h"
#include "common/prefill/job_trace.h"
#include "common/prefill/request.h"
#include "common/transfer/kv_sender.h"
#include "common/worker/call_gate.h"
#include "common/worker/raw_request.h"

namespace baton::prefill {
grpc::ServerWriteReactor<grpc::ByteBuffer>* PrefillService::Prefill(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const absl::Status allowed = worker::CheckCall(calls_.secret, *context);
  const absl::StatusOr<internal::v1::PrefillRequest> request =
      allowed.ok() ? worker::ParseRequest<internal::v1::PrefillRequest>(*bytes)
                   : absl::StatusOr<internal::v1::PrefillRequest>(allowed);
  absl::Status status =
      request.ok() ? CheckRequest(*request, calls_.epoch, calls_.engine) : request.status();
  const uint64_t job_id = calls_.next_job_id.fetch_add(1);
  transfer::GrpcKvSender::Options options;
  options.transfer_id = status.ok() ? request->transfer_id() : 0;
  options.epoch = calls_.epoch;
  options.layout = calls_.engine.kv_layout();
  options.pool = calls_.engine.kv_pool();
  // The sender keeps the token.
  options.on_peer_gone = [this, job_id, open = worker::OpenCalls::Count(calls_.open_calls)] {
    calls_.jobs.Cancel(job_id);
  };
  tracing::Tracer* const tracer = allowed.ok() ? calls_.tracer : nullptr;  // strangers record none
  const TraceContext trace_context = tracing::JoinTrace(tracer, TraceOfCall(*context));
  std::shared_ptr<JobTrace> trace = JobTrace::Begin(tracer, trace_context);
  if (trace != nullptr) {
    if (request.ok()) trace->root().Set("baton.request.id", request->request_id());
    options.on_finish = [trace](const absl::Status& status) { trace->End(status); };
  }
  options.layer_runs = status.ok() && request->takes_layer_runs();
  options.schedule = calls_.links;
  options.link = context->peer();
  options.deadline = absl::FromChrono(context->deadline());
  if (status.ok() && calls_.shared_pool != nullptr &&
      request->shared_memory().host() == calls_.shared_pool->host() &&
      (request->shared_memory().device() || calls_.shared_pool->plane() == transfer::Plane::kShm)) {
    options.lease =
        calls_.shared_pool->Open(request->shared_memory().connection(), request->transfer_id());
    if (options.lease == nullptr) options.offered = calls_.shared_pool;
    options.check_shared = calls_.check_shared;
  }
  if (status.ok() && calls_.device_links != nullptr && request->has_device_link()) {
    options.device_link = calls_.device_links->Find(request->device_link().connection());
    options.offers_device_link = options.device_link == nullptr;
  }
  options.on_bytes_sent = [this](int64_t bytes, transfer::Plane plane) {
    calls_.metrics.BytesSent(bytes, plane);
  };
  auto sender = std::make_shared<transfer::GrpcKvSender>(std::move(options));
  auto* reactor = transfer::GrpcKvSender::Open(sender);
  if (!status.ok()) {
    if (!absl::IsCancelled(status)) {
      if (allowed.ok()) {  // strangers must not fill the log
        BATON_LOG(Warning) << "prefill from " << context->peer() << " refused: " << status;
      }
      calls_.metrics.Refused(ErrorReason(status));
    }
    sender->Finish(status);
    return reactor;
  }
  std::unique_ptr<PrefillJob> job =
      MakeJob(*request, absl::FromChrono(context->deadline()), calls_.engine);
  job->id = job_id;
  job->token_sink = std::make_shared<TransferSink>(sender);
  job->transfer->sender = std::move(sender);
  job->trace_context = trace_context;
  job->trace = std::move(trace);
  calls_.jobs.Submit(std::move(job));
  return reactor;
}

}  // namespace baton::prefill
