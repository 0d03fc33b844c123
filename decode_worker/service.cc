#include "decode_worker/service.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/grammar/from_proto.h"
#include "common/worker/call_gate.h"
#include "decode_worker/call_trace.h"
#include "decode_worker/request.h"

namespace baton::decode_worker {

grpc::ServerWriteReactor<internal::v1::DecodeResponse>* DecodeService::Decode(
    grpc::CallbackServerContext* context, const internal::v1::DecodeRequest* request) {
  const uint64_t id = next_call_id_.fetch_add(1);
  auto gone = std::make_shared<std::atomic<bool>>(false);
  const absl::Status allowed = worker::CheckCall(secret_, *context);
  tracing::Tracer* const tracer = allowed.ok() ? tracer_ : nullptr;  // strangers record no spans
  const TraceContext trace_context = tracing::JoinTrace(tracer, TraceOfCall(*context));
  std::shared_ptr<CallTrace> trace = CallTrace::Begin(tracer, trace_context, *request);
  std::function<void(const absl::Status&)> on_finish;
  if (trace != nullptr) on_finish = [trace](const absl::Status& status) { trace->End(status); };
  auto stream = std::make_shared<GrpcDecodeStream>(
      [this, id, gone, open = worker::OpenCalls::Count(open_calls_)] {
        *gone = true;
        if (structured_output_ != nullptr) structured_output_->Cancel(id);
        loop_.Cancel(id);
      },
      std::move(on_finish));
  auto* reactor = GrpcDecodeStream::Open(stream);
  absl::Status status = allowed.ok() ? CheckRequest(*request, epoch_, engine_) : allowed;
  if (status.ok()) {
    status = CheckStructuredOutput(*request, structured_output_ != nullptr, engine_);
  }
  if (!status.ok()) {
    if (allowed.ok()) {  // strangers must not fill the log
      BATON_REQUEST_LOG(Warning, request->request_id(), trace_context)
          << "decode from " << context->peer() << " refused: " << status;
    }
    metrics_.Refused(ErrorReason(status));
    stream->Finish(status);
    return reactor;
  }
  const absl::Time deadline =
      std::min(absl::FromChrono(context->deadline()), absl::Now() + max_request_time_);
  std::unique_ptr<Sequence> sequence = MakeSequence(*request, deadline, engine_);
  sequence->call->id = id;
  sequence->call->trace_context = trace_context;
  sequence->call->trace = std::move(trace);
  sequence->call->stream = std::move(stream);
  if (request->has_structured_output()) {
    SubmitCompiled(*request, std::move(sequence), std::move(gone));
  } else {
    loop_.Submit(std::move(sequence));
  }
  return reactor;
}

void DecodeService::SubmitCompiled(const internal::v1::DecodeRequest& request,
                                   std::unique_ptr<Sequence> sequence,
                                   std::shared_ptr<const std::atomic<bool>> gone) {
  const uint64_t id = sequence->call->id;
  auto submit = [this, id, gone, sequence = std::move(sequence)](
                    grammar::StructuredOutput::Compiled compiled) mutable {
    if (!compiled.ok()) {
      if (!absl::IsCancelled(compiled.status())) metrics_.Refused(ErrorReason(compiled.status()));
      sequence->call->stream->Finish(compiled.status());
      return;
    }
    sequence->call->grammar = *std::move(compiled);
    loop_.Submit(std::move(sequence));
    if (*gone) loop_.Cancel(id);
  };
  structured_output_->Compile(id, grammar::FromProto(request.structured_output()),
                              std::move(submit));
  // The cancel may have come before the call was in the queue; above, before it was in the loop.
  if (*gone) structured_output_->Cancel(id);
}

}  // namespace baton::decode_worker
