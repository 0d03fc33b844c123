#include "common/base/rpc/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/tls.h"

namespace baton {
namespace {

// Far below the interval of any of our channels: keepalive pings must not count as abuse.
constexpr int kMinPingIntervalMs = 100;
// How often Stop() cancels again, while another thread's Stop() has not refused new calls yet.
constexpr absl::Duration kCancelTick = absl::Milliseconds(10);

using MayReflect = std::function<absl::Status(const grpc::ServerContextBase&)>;

// Ends a call of the reflection service before gRPC's own handler reads from it.
class ReflectionGate final : public grpc::experimental::Interceptor {
 public:
  ReflectionGate(const MayReflect& may_reflect, grpc::ServerContextBase* context)
      : may_reflect_(may_reflect), context_(context) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      if (const grpc::Status refused = ToGrpcStatus(may_reflect_(*context_)); !refused.ok()) {
        grpc_call_cancel_with_status(context_->c_call(),
                                     static_cast<grpc_status_code>(refused.error_code()),
                                     refused.error_message().c_str(), nullptr);
      }
    }
    methods->Proceed();
  }

 private:
  const MayReflect& may_reflect_;  // of the factory, which the server owns
  grpc::ServerContextBase* const context_;
};

class ReflectionGateFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ReflectionGateFactory(MayReflect may_reflect) : may_reflect_(std::move(may_reflect)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (!absl::StartsWith(info->method(), "/grpc.reflection.")) return nullptr;
    return new ReflectionGate(may_reflect_, info->server_context());
  }

 private:
  const MayReflect may_reflect_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
    const std::vector<std::string>& service_names) {
  static const bool plugins_ready = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)plugins_ready;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, MakeServerCredentials(options.tls), &port);
  if (!options.unix_socket.empty()) {
    builder.AddListeningPort("unix:" + options.unix_socket, grpc::InsecureServerCredentials());
  }
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  if (options.may_reflect != nullptr) {
    interceptors.push_back(std::make_unique<ReflectionGateFactory>(options.may_reflect));
  }
  auto answers = std::make_unique<AnswerWatch>(options.write_stall_timeout, *options.clock,
                                               options.on_stalled);
  interceptors.push_back(answers->MakeFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  SetKeepalive(options.keepalive, [&builder](const char* name, int value) {
    builder.AddChannelArgument(name, value);
  });
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  // A GOAWAY for too many pings would end the streams of a busy connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // With SO_REUSEPORT, two servers on one port would each silently get half of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> bound = builder.BuildAndStart();
  if (bound == nullptr) {
    const bool at_socket = port != 0 && !options.unix_socket.empty();
    return MakeError(
        absl::StatusCode::kUnavailable, "ADDRESS_IN_USE",
        absl::StrCat("cannot listen on ", at_socket ? options.unix_socket : options.address,
                     at_socket ? ": expected a path of at most 107 bytes in a directory that exists"
                               : ": expected a free address of this machine, as host:port"));
  }
  std::unique_ptr<RpcServer> server(new RpcServer());
  server->answers_ = std::move(answers);
  server->server_ = std::move(bound);
  server->service_names_ = service_names;
  server->port_ = port;
  server->address_ = absl::StrCat(options.address.substr(0, options.address.rfind(':')), ":", port);
  server->SetServing(false);
  return server;
}

RpcServer::~RpcServer() { Stop(absl::ZeroDuration()); }

void RpcServer::SetServing(bool serving) {
  auto* health = server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("", true);  // liveness, which load does not change
  for (const std::string& name : service_names_) health->SetServingStatus(name, serving);
}

void RpcServer::Stop(absl::Duration grace) {
  if (!stopping_.exchange(true)) {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));  // saturates: grace may be infinite
    stopped_.Notify();
    return;
  }
  // gRPC's Shutdown() waits under its lock, so a second Shutdown() cannot shorten the first.
  while (grace <= absl::ZeroDuration() && !stopped_.HasBeenNotified()) {
    grpc_server_cancel_all_calls(server_->c_server());
    stopped_.WaitForNotificationWithTimeout(kCancelTick);
  }
  stopped_.WaitForNotification();
}

}  // namespace baton
