#include "common/base/rpc/channel.h"

#include <grpcpp/grpcpp.h>

namespace baton {
namespace {

constexpr int kMaxMessageBytes = 16 << 20;

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelSettings& settings) {
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
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace baton
