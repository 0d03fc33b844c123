#include "router/decode_stream.h"

namespace baton::router {

DecodeStream* DecodeStream::Open(internal::v1::DecodeService::Stub& stub,
                                 internal::v1::DecodeRequest request, absl::Time deadline,
                                 std::shared_ptr<Listener> listener) {
  auto* stream = new DecodeStream(std::move(request), std::move(listener));
  stream->context_.set_deadline(absl::ToChronoTime(deadline));
  stub.async()->Decode(&stream->context_, &stream->request_, stream);
  stream->StartRead(&stream->response_);
  stream->StartCall();
  return stream;
}

void DecodeStream::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone says why
  listener_->OnDecoded(response_);
  StartRead(&response_);
}

void DecodeStream::OnDone(const grpc::Status& status) {
  // The listener goes last. Who waits for it may destroy the channel then, which must not happen
  // here: the context holds a reference to it, and a channel cannot end on a thread of gRPC's.
  const std::shared_ptr<Listener> listener = listener_;
  listener->OnStreamEnd(status);
  delete this;
}

}  // namespace baton::router
