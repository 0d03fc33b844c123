#include "common/transfer/peer_channels.h"

#include <algorithm>

namespace baton::transfer {

std::shared_ptr<grpc::Channel> PeerChannels::Get(const std::string& address) {
  const auto it = std::find_if(channels_.begin(), channels_.end(),
                               [&](const auto& entry) { return entry.first == address; });
  if (it != channels_.end()) {
    channels_.splice(channels_.begin(), channels_, it);
  } else {
    channels_.emplace_front(address, MakeChannel(address, kTransferChannel, security_));
    if (channels_.size() > kMaxChannels) channels_.pop_back();
  }
  return channels_.front().second;
}

}  // namespace baton::transfer
