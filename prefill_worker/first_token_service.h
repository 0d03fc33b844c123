// DecodeService of a prefill worker: answers of one token. Such an answer is complete when the
// prompt is, so no KV is transferred.
#ifndef BATON_PREFILL_WORKER_FIRST_TOKEN_SERVICE_H_
#define BATON_PREFILL_WORKER_FIRST_TOKEN_SERVICE_H_

#include "baton/internal/v1/decode.grpc.pb.h"
#include "common/prefill/service.h"

namespace baton::prefill_worker {

// Thread-safe.
class FirstTokenService final : public internal::v1::DecodeService::CallbackService {
 public:
  explicit FirstTokenService(prefill::CallContext& calls) : calls_(calls) {}

  // Refuses with INVALID_ARGUMENT (NOT_ONE_TOKEN) what takes a decode worker: several tokens,
  // choices or beams, or structured output.
  grpc::ServerWriteReactor<internal::v1::DecodeResponse>* Decode(
      grpc::CallbackServerContext* context, const internal::v1::DecodeRequest* request) override;

 private:
  prefill::CallContext& calls_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_FIRST_TOKEN_SERVICE_H_
