#include "common/base/rpc/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"

namespace baton {
namespace {

// Far below the interval of any of our channels: keepalive pings must not count as abuse.
constexpr int kMinPingIntervalMs = 100;
// How often Stop() cancels again, while another thread's Stop() has not refused new calls yet.
constexpr absl::Duration kCancelTick = absl::Milliseconds(10);

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
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
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
  std::unique_ptr<RpcServer> server(new RpcServer());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return MakeError(absl::StatusCode::kUnavailable, "ADDRESS_IN_USE",
                     absl::StrCat("cannot listen on ", options.address,
                                  ": expected a free address of this machine, as host:port"));
  }
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
