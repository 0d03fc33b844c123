#include "common/transfer/frame_codec.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/error.h"

namespace baton::transfer {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Field 15, wire type 2 (length-delimited).
constexpr uint8_t kPayloadTag = (internal::v1::PrefillFrame::kPayloadFieldNumber << 3) | 2;
// The most bytes in front of a payload: six scalars, a body of three.
constexpr size_t kMaxHeaderBytes = 256;
// The most bytes of a frame without a payload: log probabilities take more than kMaxHeaderBytes.
constexpr size_t kMaxPlainFrameBytes = (1 << 20) + kMaxHeaderBytes;

absl::Status Malformed(const char* what) {
  return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_FRAME",
                   std::string("KV frame: ") + what + ", expected a serialized PrefillFrame");
}

// Length of the header in front of the payload's tag, found by walking over the fields.
// nullopt if the bytes are no sequence of fields. `payload_bytes` is -1 if there is no payload.
struct HeaderExtent {
  int header_bytes;
  int64_t payload_start;  // behind tag and length
  int64_t payload_bytes;
};
std::optional<HeaderExtent> FindHeader(const std::string& start, size_t message_bytes) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(start.data()),
                         static_cast<int>(start.size()));
  while (true) {
    const int position = input.CurrentPosition();
    const uint32_t tag = input.ReadTag();
    if (tag == 0) {
      if (!input.ConsumedEntireMessage() || start.size() < message_bytes) return std::nullopt;
      return HeaderExtent{position, static_cast<int64_t>(message_bytes), 0};
    }
    if (tag == kPayloadTag) {
      uint32_t size;
      if (!input.ReadVarint32(&size)) return std::nullopt;
      return HeaderExtent{position, input.CurrentPosition(), size};
    }
    uint64_t fixed;
    uint32_t length;
    switch (tag & 7) {
      case 1:
        if (!input.ReadLittleEndian64(&fixed)) return std::nullopt;
        break;
      case 2:
        if (!input.ReadVarint32(&length) || length > kMaxPlainFrameBytes ||
            !input.Skip(static_cast<int>(length))) {
          return std::nullopt;
        }
        break;
      default:
        return std::nullopt;  // no field of a PrefillFrame has another wire type
    }
  }
}

// The first bytes of the message, in one piece.
std::string FirstBytes(const std::vector<grpc::Slice>& slices, size_t max_bytes) {
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    if (bytes.size() >= max_bytes) break;
    const size_t count = std::min(slice.size(), max_bytes - bytes.size());
    bytes.append(reinterpret_cast<const char*>(slice.begin()), count);
  }
  return bytes;
}

}  // namespace

grpc::ByteBuffer EncodeFrame(const internal::v1::PrefillFrame& frame,
                             std::vector<grpc::Slice> payload) {
  size_t payload_bytes = 0;
  for (const grpc::Slice& slice : payload) payload_bytes += slice.size();
  std::string header = frame.SerializeAsString();
  if (payload_bytes > 0) {
    uint8_t prefix[8];
    prefix[0] = kPayloadTag;
    uint8_t* end =
        CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(payload_bytes), prefix + 1);
    header.append(reinterpret_cast<const char*>(prefix), end - prefix);
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + payload.size());
  slices.emplace_back(header);
  for (grpc::Slice& slice : payload) slices.push_back(std::move(slice));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<DecodedFrame> DecodeFrame(const grpc::ByteBuffer& buffer) {
  DecodedFrame decoded;
  if (!buffer.Dump(&decoded.slices).ok()) return Malformed("unreadable buffer");
  const size_t message_bytes = buffer.Length();
  std::string start = FirstBytes(decoded.slices, kMaxHeaderBytes);
  std::optional<HeaderExtent> extent = FindHeader(start, message_bytes);
  if (!extent && message_bytes > kMaxHeaderBytes && message_bytes <= kMaxPlainFrameBytes) {
    start = FirstBytes(decoded.slices, message_bytes);
    extent = FindHeader(start, message_bytes);
  }
  if (!extent) return Malformed("unknown fields");
  if (extent->payload_start + extent->payload_bytes != static_cast<int64_t>(message_bytes)) {
    return Malformed("payload length differs from the message's");
  }
  if (!decoded.frame.ParseFromArray(start.data(), extent->header_bytes)) {
    return Malformed("unparsable header");
  }
  int64_t skip = extent->payload_start;
  for (const grpc::Slice& slice : decoded.slices) {
    const int64_t size = static_cast<int64_t>(slice.size());
    if (skip < size) {
      decoded.payload.emplace_back(reinterpret_cast<const char*>(slice.begin()) + skip,
                                   static_cast<size_t>(size - skip));
    }
    skip = std::max<int64_t>(0, skip - size);
  }
  return decoded;
}

}  // namespace baton::transfer
