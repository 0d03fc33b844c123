// PrefillService: checks requests and hands them to the loop. The KV payload never becomes a
// Protobuf message, so Prefill is registered raw.
#ifndef BATON_COMMON_PREFILL_SERVICE_H_
#define BATON_COMMON_PREFILL_SERVICE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "baton/internal/v1/kv.grpc.pb.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/engine/engine.h"
#include "common/prefill/jobs.h"
#include "common/prefill/metrics.h"
#include "common/security/shared_secret.h"
#include "common/tracing/tracer.h"
#include "common/transfer/device_link_server.h"
#include "common/transfer/link_schedule.h"
#include "common/transfer/shared_pool_server.h"
#include "common/worker/call_gate.h"
#include "common/worker/open_calls.h"

namespace baton::prefill {

// What the worker's services have in common. All must outlive them.
struct CallContext {
  const uint64_t epoch;  // a request for another one is refused
  const engine::Engine& engine;
  const std::string role;  // "prefill" or "decode", for messages
  PrefillJobs& jobs;
  JobMetrics& metrics;
  const std::shared_ptr<worker::OpenCalls> open_calls;
  security::SharedSecret* const secret;                     // that callers must have; null: none
  tracing::Tracer* const tracer;                            // null: nothing is traced
  transfer::SharedPoolServer* const shared_pool = nullptr;  // null: KV is sent
  const bool check_shared = true;
  transfer::DeviceLinkServer* const device_links = nullptr;  // null: the device is not linked
  std::atomic<uint64_t> next_job_id{1};
  const std::shared_ptr<transfer::LinkSchedule> links =
      std::make_shared<transfer::LinkSchedule>(Clock::Real());
};

using RawPrefillService = internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
    internal::v1::PrefillService::WithCallbackMethod_ScoreItems<
        internal::v1::PrefillService::Service>>;

// Thread-safe.
class PrefillService final : public RawPrefillService {
 public:
  explicit PrefillService(CallContext& calls) : calls_(calls) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override;
  // score_items.cc
  grpc::ServerWriteReactor<internal::v1::ScoredItem>* ScoreItems(
      grpc::CallbackServerContext* context,
      const internal::v1::ScoreItemsRequest* request) override;

 private:
  CallContext& calls_;
};

// For decode workers whose devices are to be linked with this one's. Thread-safe.
class DeviceLinkService final : public internal::v1::KvLinkService::WithCallbackMethod_Link<
                                    internal::v1::KvLinkService::Service> {
 public:
  explicit DeviceLinkService(CallContext& calls) : calls_(calls) {}
  transfer::DeviceLinkServer::Reactor* Link(grpc::CallbackServerContext* context) override {
    return calls_.device_links->Accept(context, worker::CheckCall(calls_.secret, *context));
  }

 private:
  CallContext& calls_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_SERVICE_H_
