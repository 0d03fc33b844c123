// KvService of both workers: checks requests and hands them to the loop.
#ifndef BATON_COMMON_WORKER_KV_SERVICE_H_
#define BATON_COMMON_WORKER_KV_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/internal/v1/kv.grpc.pb.h"
#include "common/engine/engine.h"
#include "common/kv/prefix_key.h"
#include "common/security/shared_secret.h"
#include "common/transfer/link_schedule.h"
#include "common/worker/kv_holder.h"
#include "common/worker/open_calls.h"

namespace baton::worker {

// A checked OfferKvRequest.
struct KvOffer {
  std::string request_id;
  internal::v1::WorkerRef holder;
  std::string cache_salt;
  kv::PrefixKey root = 0;
  std::vector<int32_t> tokens;  // whole blocks
};

// Called once, with the answer.
using AnswerOffer = std::function<void(absl::StatusOr<internal::v1::OfferKvResponse::Result>)>;

// Return DATA_LOSS (CHECKSUM), FAILED_PRECONDITION (another epoch, model or KV layout than this
// worker's, with both values), or INVALID_ARGUMENT, naming the field. `now`, `deadline`: of the
// call, which must end within KvHolder::kMostTime.
absl::Status CheckRequest(const internal::v1::FetchKvRequest& request, uint64_t epoch,
                          const engine::Engine& engine, absl::Time now, absl::Time deadline);
absl::Status CheckRequest(const internal::v1::OfferKvRequest& request, uint64_t epoch,
                          const engine::Engine& engine);

// The address at which a worker that listens on `address` can be called, where that names no host
// (0.0.0.0 or [::]): with the host of `peer`, as gRPC names the other end of the worker's own call.
std::string ReachableAddress(const std::string& address, const std::string& peer);

using RawKvService = internal::v1::KvService::WithRawCallbackMethod_FetchKv<
    internal::v1::KvService::WithCallbackMethod_OfferKv<internal::v1::KvService::Service>>;

// Thread-safe.
class KvService final : public RawKvService {
 public:
  // All must outlive the service.
  struct Context {
    const uint64_t epoch;
    const engine::Engine& engine;
    KvHolder& holder;
    KvExchangeMetrics& metrics;
    const std::shared_ptr<OpenCalls> open_calls;
    security::SharedSecret* const secret;  // that callers must have; null: none
    const std::shared_ptr<transfer::LinkSchedule> links;
    // Null: this worker takes no offers.
    const std::function<void(KvOffer, AnswerOffer)> offer;
  };
  explicit KvService(Context context) : context_(std::move(context)) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchKv(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes) override;
  grpc::ServerUnaryReactor* OfferKv(grpc::CallbackServerContext* context,
                                    const internal::v1::OfferKvRequest* request,
                                    internal::v1::OfferKvResponse* response) override;

 private:
  const Context context_;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_KV_SERVICE_H_
