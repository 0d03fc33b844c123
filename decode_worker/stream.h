// The answer stream of one Decode call. Tokens that the router has not taken yet are merged into one
// message, so a slow reader holds one message, not one a token.
#ifndef BATON_DECODE_WORKER_STREAM_H_
#define BATON_DECODE_WORKER_STREAM_H_

#include <functional>
#include <utility>

#include "baton/internal/v1/decode.pb.h"
#include "common/base/rpc/server_stream.h"

namespace baton::decode_worker {

// Thread-safe.
class DecodeStream final
    : public ServerStream<internal::v1::DecodeResponse, internal::v1::DecodeResponse> {
 public:
  // on_peer_gone comes from a gRPC thread, at most once.
  explicit DecodeStream(std::function<void()> on_peer_gone)
      : on_peer_gone_(std::move(on_peer_gone)) {}

 private:
  void Encode(internal::v1::DecodeResponse item, internal::v1::DecodeResponse* message) override {
    *message = std::move(item);
  }
  bool Merge(internal::v1::DecodeResponse& last, internal::v1::DecodeResponse& next) override {
    last.MergeFrom(next);  // appends token ids; usage, finish and timings are the newest
    return true;
  }
  void OnPeerGone() override { on_peer_gone_(); }

  const std::function<void()> on_peer_gone_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_STREAM_H_
