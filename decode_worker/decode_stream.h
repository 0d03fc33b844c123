// The response stream of one Decode call. Unsent tokens of a choice are merged into messages of at
// most kMaxTokensPerMessage, so the queue stays short even with a slow reader.
#ifndef BATON_DECODE_WORKER_DECODE_STREAM_H_
#define BATON_DECODE_WORKER_DECODE_STREAM_H_

#include <deque>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "baton/internal/v1/decode.pb.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server_stream.h"
#include "decode_worker/response.h"

namespace baton::decode_worker {

// What DecodeLoop sees of the stream.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  virtual void Push(internal::v1::DecodeResponse response) = 0;
  // Call exactly once. OK: the stream ends after what was pushed. An error: it ends now, and unsent
  // messages are dropped.
  virtual void Finish(const absl::Status& status) = 0;
};

// Thread-safe.
class GrpcDecodeStream final
    : public ServerStream<internal::v1::DecodeResponse, internal::v1::DecodeResponse>,
      public DecodeStream {
 public:
  // on_peer_gone is called on a gRPC thread, at most once; on_finish, which may be null, before
  // Finish.
  explicit GrpcDecodeStream(std::function<void()> on_peer_gone,
                            std::function<void(const absl::Status&)> on_finish = nullptr)
      : on_peer_gone_(std::move(on_peer_gone)), on_finish_(std::move(on_finish)) {}

  void Push(internal::v1::DecodeResponse response) override {
    ServerStream::Push(std::move(response));
  }
  void Finish(const absl::Status& status) override {
    if (on_finish_) on_finish_(status);
    ServerStream::Finish(ToGrpcStatus(status));
  }

 private:
  void Encode(internal::v1::DecodeResponse item, internal::v1::DecodeResponse* message) override {
    *message = std::move(item);
  }
  bool Merge(std::deque<internal::v1::DecodeResponse>& waiting,
             internal::v1::DecodeResponse& next) override {
    return MergeResponse(waiting, next);
  }
  void OnPeerGone() override { on_peer_gone_(); }

  const std::function<void()> on_peer_gone_;
  const std::function<void(const absl::Status&)> on_finish_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DECODE_STREAM_H_
