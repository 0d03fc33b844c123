#include "common/base/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"

namespace baton {
namespace {

// Far below what any client sends: no client is cut off for its keepalive pings.
constexpr int kMinPingIntervalMs = 100;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// What both ends need, so that each notices when the other vanishes.
template <class SetInt>
void SetKeepalive(const Keepalive& keepalive, SetInt set_int) {
  set_int(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive.time));
  set_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive.timeout));
  set_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A prefill may be silent for long; pings go on nevertheless.
  set_int(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

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
  // No GOAWAY "too many pings": it would take down the streams of a busy connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // Two servers on one port would each get half of the connections, without a word.
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
  health->SetServingStatus("", true);  // alive, however busy
  for (const std::string& name : service_names_) health->SetServingStatus(name, serving);
}

void RpcServer::Stop(absl::Duration grace) {
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));  // saturates: grace may be infinite
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const Keepalive& keepalive) {
  grpc::ChannelArguments arguments;
  SetKeepalive(keepalive,
               [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  // A restarted worker is to be used within 2 s of its coming back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // In spite of its name, how long one attempt to connect may take: several round trips of a slow
  // link.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'500);
  // One connection per channel object: a shared one would tie unrelated peers' flow control
  // together.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetMaxSendMessageSize(16 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace baton
