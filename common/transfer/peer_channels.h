// Channels to other workers, one for each address.
#ifndef BATON_COMMON_TRANSFER_PEER_CHANNELS_H_
#define BATON_COMMON_TRANSFER_PEER_CHANNELS_H_

#include <grpcpp/channel.h>

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "common/base/rpc/channel.h"

namespace baton::transfer {

// Addresses come from requests, so the number of channels is bounded: the least recently used is
// dropped (open calls keep their channel).
// Thread: owned by the loop; unsynchronized.
class PeerChannels {
 public:
  static constexpr size_t kMaxChannels = 256;
  explicit PeerChannels(ChannelSecurity security = {}) : security_(std::move(security)) {}
  std::shared_ptr<grpc::Channel> Get(const std::string& address);

 private:
  const ChannelSecurity security_;
  std::list<std::pair<std::string, std::shared_ptr<grpc::Channel>>> channels_;  // newest use first
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_PEER_CHANNELS_H_
