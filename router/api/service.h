// The router's public gRPC services, on the callback API.
#ifndef BATON_ROUTER_API_SERVICE_H_
#define BATON_ROUTER_API_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "router/request/router_parts.h"

namespace baton::router {

// With API keys, every call needs one, and admin calls one with that right: see Access.

// All methods take raw bytes, see wire.h.
using RawInferenceService = v1::InferenceService::WithRawCallbackMethod_Generate<
    v1::InferenceService::WithRawCallbackMethod_GenerateOnce<
        v1::InferenceService::WithRawCallbackMethod_Tokenize<
            v1::InferenceService::WithRawCallbackMethod_Detokenize<
                v1::InferenceService::WithRawCallbackMethod_ListModels<
                    v1::InferenceService::Service>>>>>;

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

 private:
  absl::Time DeadlineOf(const grpc::CallbackServerContext& context) const;
  RouterParts& parts_;
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // `parts` must outlive the server that this is registered with.
  explicit AdminService(RouterParts& parts) : parts_(parts) {}
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override;
  grpc::ServerUnaryReactor* ListDecisions(grpc::CallbackServerContext* context,
                                          const v1::ListDecisionsRequest* request,
                                          v1::ListDecisionsResponse* response) override;

 private:
  absl::Status Allow(const grpc::CallbackServerContext& context) const;
  RouterParts& parts_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_API_SERVICE_H_
