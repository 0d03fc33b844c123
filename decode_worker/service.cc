#include "decode_worker/service.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/worker/call_gate.h"
#include "decode_worker/request.h"

namespace baton::decode_worker {

grpc::ServerWriteReactor<internal::v1::DecodeResponse>* DecodeService::Decode(
    grpc::CallbackServerContext* context, const internal::v1::DecodeRequest* request) {
  const uint64_t id = next_call_id_.fetch_add(1);
  auto stream = std::make_shared<GrpcDecodeStream>(
      [this, id, open = worker::OpenCalls::Count(open_calls_)] { loop_.Cancel(id); });
  auto* reactor = GrpcDecodeStream::Open(stream);
  const absl::Status allowed = worker::CheckCall(secret_, *context);
  const absl::Status status = allowed.ok() ? CheckRequest(*request, epoch_, engine_) : allowed;
  if (!status.ok()) {
    if (allowed.ok()) {  // strangers must not fill the log
      BATON_LOG(Warning) << "decode from " << context->peer() << " refused: " << status;
    }
    metrics_.Refused(ErrorReason(status));
    stream->Finish(status);
    return reactor;
  }
  const absl::Time deadline =
      std::min(absl::FromChrono(context->deadline()), absl::Now() + max_request_time_);
  std::unique_ptr<Sequence> sequence = MakeSequence(*request, deadline, engine_);
  sequence->call->id = id;
  sequence->call->stream = std::move(stream);
  loop_.Submit(std::move(sequence));
  return reactor;
}

}  // namespace baton::decode_worker
