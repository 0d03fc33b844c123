#include "common/base/rpc/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/listening_sockets.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/tls.h"

namespace baton {
namespace {

// Far below the interval of any of our channels: keepalive pings must not count as abuse.
constexpr int kMinPingIntervalMs = 100;
// How often Stop() cancels again, while another thread's Stop() has not refused new calls yet.
constexpr absl::Duration kCancelTick = absl::Milliseconds(10);

// How long Drain() tries to get the address back.
constexpr absl::Duration kRefuseWithin = absl::Seconds(2);
constexpr absl::Duration kRefuseTick = absl::Milliseconds(1);
// Connections to a server that only refuses live so long.
constexpr int kRefusedConnectionMs = 1000;

using MayReflect = std::function<absl::Status(const grpc::ServerContextBase&)>;

}  // namespace

// The open calls of gRPC's own services, some of which last until they are cancelled. Thread-safe.
class RpcServer::OwnCalls {
 public:
  void Add(grpc_call* call) {
    grpc_call_ref(call);
    bool cancelled;
    {
      absl::MutexLock lock(&mutex_);
      calls_.push_back(call);
      cancelled = cancelled_;
    }
    if (cancelled) Cancel(call);
  }
  void Remove(grpc_call* call) {
    {
      absl::MutexLock lock(&mutex_);
      calls_.erase(absl::c_find(calls_, call));
    }
    grpc_call_unref(call);
  }
  // Cancels the open calls now, and later ones as they come.
  void CancelAll() {
    std::vector<grpc_call*> open;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      open = calls_;
      for (grpc_call* call : open) grpc_call_ref(call);
    }
    // The lock is not held here: a cancelled call may end, and call Remove, at once.
    for (grpc_call* call : open) {
      Cancel(call);
      grpc_call_unref(call);
    }
  }

 private:
  static void Cancel(grpc_call* call) {
    grpc_call_cancel_with_status(call, GRPC_STATUS_UNAVAILABLE, "the server stops", nullptr);
  }
  absl::Mutex mutex_;
  std::vector<grpc_call*> calls_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// Notes a call of one of gRPC's own services, and checks a call of reflection before gRPC's handler
// reads from it.
class RpcServer::OwnCall final : public grpc::experimental::Interceptor {
 public:
  OwnCall(std::shared_ptr<OwnCalls> calls, const MayReflect* may_reflect,
          grpc::ServerContextBase* context)
      : calls_(std::move(calls)), may_reflect_(may_reflect), context_(context) {}
  ~OwnCall() override {
    if (call_ != nullptr) calls_->Remove(call_);
  }
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      call_ = context_->c_call();
      calls_->Add(call_);
      Gate();
    }
    methods->Proceed();
  }

  class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
   public:
    Factory(std::shared_ptr<OwnCalls> calls, MayReflect may_reflect)
        : calls_(std::move(calls)), may_reflect_(std::move(may_reflect)) {}
    grpc::experimental::Interceptor* CreateServerInterceptor(
        grpc::experimental::ServerRpcInfo* info) override {
      if (!absl::StartsWith(info->method(), "/grpc.")) return nullptr;
      const bool gated =
          may_reflect_ != nullptr && absl::StartsWith(info->method(), "/grpc.reflection.");
      return new OwnCall(calls_, gated ? &may_reflect_ : nullptr, info->server_context());
    }

   private:
    const std::shared_ptr<OwnCalls> calls_;
    const MayReflect may_reflect_;
  };

 private:
  void Gate() {
    if (may_reflect_ == nullptr) return;
    const grpc::Status refused = ToGrpcStatus((*may_reflect_)(*context_));
    if (refused.ok()) return;
    grpc_call_cancel_with_status(call_, static_cast<grpc_status_code>(refused.error_code()),
                                 refused.error_message().c_str(), nullptr);
  }

  const std::shared_ptr<OwnCalls> calls_;
  const MayReflect* const may_reflect_;  // the factory's, which the server owns; null: no check
  grpc::ServerContextBase* const context_;
  grpc_call* call_ = nullptr;
};

// Refuses every call of a service that the server does not have.
class RpcServer::Refuser final : public grpc::CallbackGenericService {
 public:
  explicit Refuser(const absl::Status& refusal) : refusal_(ToGrpcStatus(refusal)) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    struct Reactor final : grpc::ServerGenericBidiReactor {
      explicit Reactor(const grpc::Status& refusal) { Finish(refusal); }
      void OnDone() override { delete this; }
    };
    return new Reactor(refusal_);
  }

 private:
  const grpc::Status refusal_;
};

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
    const std::vector<std::string>& service_names) {
  return Build(options, services, service_names, /*refuser=*/nullptr);
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Build(
    const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
    const std::vector<std::string>& service_names, std::unique_ptr<Refuser> refuser) {
  static const bool plugins_ready = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)plugins_ready;
  std::unique_ptr<RpcServer> server(new RpcServer());
  server->own_calls_ = std::make_shared<OwnCalls>();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, MakeServerCredentials(options.tls), &port);
  if (!options.unix_socket.empty()) {
    builder.AddListeningPort("unix:" + options.unix_socket, grpc::InsecureServerCredentials());
  }
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(
      std::make_unique<OwnCall::Factory>(server->own_calls_, options.may_reflect));
  auto answers = std::make_unique<AnswerWatch>(options.write_stall_timeout, *options.clock,
                                               options.on_stalled);
  interceptors.push_back(answers->MakeFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  // gRPC looks at a message's size once it is unpacked: a few bytes could take all memory. A call
  // with a compressed message is UNIMPLEMENTED.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
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
  if (refuser != nullptr) {
    builder.RegisterCallbackGenericService(refuser.get());
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kRefusedConnectionMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kRefusedConnectionMs);
  }
  std::unique_ptr<grpc::Server> bound = builder.BuildAndStart();
  if (bound == nullptr) {
    const bool at_socket = port != 0 && !options.unix_socket.empty();
    return MakeError(
        absl::StatusCode::kUnavailable, "ADDRESS_IN_USE",
        absl::StrCat("cannot listen on ", at_socket ? options.unix_socket : options.address,
                     at_socket ? ": expected a path of at most 107 bytes in a directory that exists"
                               : ": expected a free address of this machine, as host:port"));
  }
  server->options_ = options;
  server->refuser_ = std::move(refuser);
  server->answers_ = std::move(answers);
  server->server_ = std::move(bound);
  server->service_names_ = service_names;
  server->port_ = port;
  server->address_ = absl::StrCat(options.address.substr(0, options.address.rfind(':')), ":", port);
  server->SetServing(false);
  return server;
}

RpcServer::RpcServer() = default;

RpcServer::~RpcServer() {
  if (server_ != nullptr) Stop(absl::ZeroDuration());  // null if the server could not be started
  StopRefusing();
}

void RpcServer::SetServing(bool serving) {
  auto* health = server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("", true);  // liveness, which load does not change
  for (const std::string& name : service_names_) health->SetServingStatus(name, serving);
}

void RpcServer::Stop(absl::Duration grace) {
  if (!stopping_.exchange(true)) {
    own_calls_->CancelAll();
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

void RpcServer::Drain(absl::Duration grace, const absl::Status& refusal) {
  if (grace <= absl::ZeroDuration()) return Stop(grace);
  std::thread stop = NamedThread("server-stop", [this, grace] { Stop(grace); });
  RpcServerOptions options = options_;
  options.address = address_;
  options.unix_socket.clear();
  // gRPC logs each attempt at an address that is not free, and a Shutdown() in another thread says
  // not when its listeners are closed.
  const absl::Time until = absl::Now() + kRefuseWithin;
  while (!ListeningSockets::Open(address_).ok() && absl::Now() < until) {
    absl::SleepFor(kRefuseTick);
  }
  absl::StatusOr<std::unique_ptr<RpcServer>> refusing =
      Build(options, {}, service_names_, std::make_unique<Refuser>(refusal));
  if (refusing.ok()) {
    refusing_ = *std::move(refusing);
  } else {
    BATON_LOG(Warning) << "new connections are refused from now on: "
                       << refusing.status().message();
  }
  stop.join();
}

void RpcServer::StopRefusing() { refusing_.reset(); }

}  // namespace baton
