// Converts a PrefillFrame to gRPC's bytes and back without copying the payload: it is the last
// field on the wire, so it can be sent from the blocks themselves and read from the receive
// buffers. What is written is an ordinary serialized PrefillFrame; any Protobuf parser reads it.
#ifndef BATON_COMMON_TRANSFER_FRAME_CODEC_H_
#define BATON_COMMON_TRANSFER_FRAME_CODEC_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <vector>

#include "absl/status/statusor.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/transfer/checksum.h"

namespace baton::transfer {

// `frame.payload` must be empty: `payload` is sent in its place.
grpc::ByteBuffer EncodeFrame(const internal::v1::PrefillFrame& frame,
                             std::vector<grpc::Slice> payload);

struct DecodedFrame {
  internal::v1::PrefillFrame frame;  // payload left empty
  std::vector<grpc::Slice> slices;   // the whole message; keeps `payload` alive
  Segments payload;                  // views into `slices`, in order
};

// INVALID_ARGUMENT if the bytes are no PrefillFrame with the payload last.
absl::StatusOr<DecodedFrame> DecodeFrame(const grpc::ByteBuffer& buffer);

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_FRAME_CODEC_H_
