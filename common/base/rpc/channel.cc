#include "common/base/rpc/channel.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>

#include "common/base/rpc/tls.h"

namespace baton {
namespace {

constexpr int kMaxMessageBytes = 16 << 20;
constexpr int kTransferDataFrameBytes = 1 << 20;

// Adds the headers when a call starts.
class HeaderWriter final : public grpc::experimental::Interceptor {
 public:
  explicit HeaderWriter(const std::function<CallHeaders()>& headers) : headers_(headers) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      for (auto& [name, value] : headers_()) {
        methods->GetSendInitialMetadata()->emplace(std::move(name), std::move(value));
      }
    }
    methods->Proceed();
  }

 private:
  const std::function<CallHeaders()>& headers_;  // of the factory, which the channel owns
};

class HeaderWriterFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit HeaderWriterFactory(std::function<CallHeaders()> headers)
      : headers_(std::move(headers)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new HeaderWriter(headers_);
  }

 private:
  const std::function<CallHeaders()> headers_;
};

}  // namespace

ChannelSecurity MakeChannelSecurity(const ChannelTls& tls, std::function<CallHeaders()> headers) {
  return {tls.on() ? MakeChannelCredentials(tls) : nullptr, tls.server_name, std::move(headers)};
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelSettings& settings,
                                           const ChannelSecurity& security) {
  grpc::ChannelArguments arguments;
  const auto set_ms = [&arguments](const char* name, absl::Duration duration) {
    arguments.SetInt(name, static_cast<int>(absl::ToInt64Milliseconds(duration)));
  };
  SetKeepalive(settings.keepalive,
               [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  set_ms(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, settings.initial_backoff);
  set_ms(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, settings.max_backoff);
  // In spite of its name, this is the limit for one attempt.
  set_ms(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, settings.connect_timeout);
  // A shared connection would tie the flow control of unrelated callers together.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (settings.receive_window_bytes > 0) {
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, settings.receive_window_bytes);
    // Without the probe a DATA frame would stay at 16 KiB.
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kTransferDataFrameBytes);
  }
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  if (!security.server_name.empty()) {
    arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, security.server_name);
  }
  const auto credentials =
      security.credentials != nullptr ? security.credentials : grpc::InsecureChannelCredentials();
  if (!security.headers) return grpc::CreateCustomChannel(address, credentials, arguments);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> writers;
  writers.push_back(std::make_unique<HeaderWriterFactory>(security.headers));
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments,
                                                                 std::move(writers));
}

}  // namespace baton
