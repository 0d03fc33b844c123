// The router's public gRPC services, on the callback API.
#ifndef BATON_ROUTER_API_SERVICE_H_
#define BATON_ROUTER_API_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/random_id.h"
#include "router/request/prefix_warmer.h"
#include "router/request/router_parts.h"

namespace baton::router {

// With API keys, every call needs one, and admin calls one with that right: see Access.

// The deadline of a call, or the router's default.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const RouterParts& parts);

// All methods take raw bytes, see wire.h.
using RawInferenceService = v1::InferenceService::WithRawCallbackMethod_Generate<
    v1::InferenceService::WithRawCallbackMethod_GenerateOnce<
        v1::InferenceService::WithRawCallbackMethod_Tokenize<
            v1::InferenceService::WithRawCallbackMethod_Detokenize<
                v1::InferenceService::WithRawCallbackMethod_ListModels<
                    v1::InferenceService::WithRawCallbackMethod_Cancel<
                        v1::InferenceService::WithRawCallbackMethod_Score<
                            v1::InferenceService::WithRawCallbackMethod_ScoreStream<
                                v1::InferenceService::WithRawCallbackMethod_Embed<
                                    v1::InferenceService::Service>>>>>>>>>;

class InferenceService final : public RawInferenceService {
 public:
  // `parts` must outlive the server that this is registered with.
  explicit InferenceService(RouterParts& parts) : parts_(parts) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* GenerateOnce(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ScoreStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;

 private:
  RouterParts& parts_;
};

// The stub of a worker by its number; null if there is no channel to it.
using WorkerStubs = std::function<std::shared_ptr<internal::v1::WorkerService::Stub>(int worker)>;

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // `parts` and `warmer` must outlive the server that this is registered with.
  AdminService(RouterParts& parts, PrefixWarmer& warmer, WorkerStubs worker_stubs)
      : parts_(parts), warmer_(warmer), worker_stubs_(std::move(worker_stubs)) {}
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override;
  grpc::ServerUnaryReactor* ListDecisions(grpc::CallbackServerContext* context,
                                          const v1::ListDecisionsRequest* request,
                                          v1::ListDecisionsResponse* response) override;
  // worker_admin.cc
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const v1::GetLoadsRequest* request,
                                     v1::GetLoadsResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context,
                                    const v1::UndrainRequest* request,
                                    v1::UndrainResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;
  // prefix_admin.cc
  grpc::ServerUnaryReactor* WarmPrefix(grpc::CallbackServerContext* context,
                                       const v1::WarmPrefixRequest* request,
                                       v1::WarmPrefixResponse* response) override;
  grpc::ServerUnaryReactor* ListWarmPrefixes(grpc::CallbackServerContext* context,
                                             const v1::ListWarmPrefixesRequest* request,
                                             v1::ListWarmPrefixesResponse* response) override;
  grpc::ServerUnaryReactor* DropWarmPrefix(grpc::CallbackServerContext* context,
                                           const v1::DropWarmPrefixRequest* request,
                                           v1::DropWarmPrefixResponse* response) override;

 private:
  grpc::ServerUnaryReactor* SetDraining(grpc::CallbackServerContext* context,
                                        const std::string& name, bool draining, bool wait,
                                        v1::WorkerStatus* answer);

  // Adds the call's id to its answer.
  absl::Status Allow(grpc::CallbackServerContext& context) const;
  RouterParts& parts_;
  PrefixWarmer& warmer_;
  const WorkerStubs worker_stubs_;
  const uint64_t epoch_ = RandomId64();  // of this router process
};

}  // namespace baton::router

#endif  // BATON_ROUTER_API_SERVICE_H_
