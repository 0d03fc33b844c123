// Channels to prefill workers, one an address, kept while they are in use.
#ifndef BATON_DECODE_WORKER_PEER_CHANNELS_H_
#define BATON_DECODE_WORKER_PEER_CHANNELS_H_

#include <grpcpp/channel.h>

#include <list>
#include <memory>
#include <string>
#include <utility>

namespace baton::decode_worker {

// An address comes from a router's request, so the number kept is bounded: least recently used goes
// first (calls under way keep their channel).
// Thread: owned by the loop; unsynchronized.
class PeerChannels {
 public:
  static constexpr size_t kMaxChannels = 256;
  std::shared_ptr<grpc::Channel> Get(const std::string& address);

 private:
  std::list<std::pair<std::string, std::shared_ptr<grpc::Channel>>> channels_;  // newest use first
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_PEER_CHANNELS_H_
