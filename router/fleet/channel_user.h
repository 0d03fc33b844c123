// Where the channels to workers go.
#ifndef BATON_ROUTER_FLEET_CHANNEL_USER_H_
#define BATON_ROUTER_FLEET_CHANNEL_USER_H_

#include <memory>

namespace grpc {
class Channel;
}

namespace baton::router {

// Sends requests over the channels that a WorkerWatch opens.
class ChannelUser {
 public:
  virtual ~ChannelUser() = default;
  // Before the first call to the worker. The channel replaces that of an earlier worker of this
  // number, which has no calls left.
  virtual void Connect(int worker, const std::shared_ptr<grpc::Channel>& channel) = 0;
  // After the worker's last call.
  virtual void Disconnect(int worker) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_CHANNEL_USER_H_
