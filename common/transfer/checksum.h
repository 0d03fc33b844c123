// Checksums of everything that crosses between workers. They cover every field,
// not only the payload: a block written to the right bytes of the wrong layer is just as silent.
#ifndef BATON_COMMON_TRANSFER_CHECKSUM_H_
#define BATON_COMMON_TRANSFER_CHECKSUM_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace baton::internal::v1 {
class FetchKvRequest;
class OfferKvRequest;
class PrefillFrame;
class PrefillRequest;
}  // namespace baton::internal::v1

namespace baton::transfer {

using Segments = std::vector<absl::Span<const char>>;

// XXH3-64 of the payload's bytes in order, seeded with XXH3-64 of the frame's fields (the checksum
// itself excepted), little-endian, in a fixed order.
uint64_t FrameChecksum(const internal::v1::PrefillFrame& frame, const Segments& payload);

// XXH3-64 of the bytes alone; never 0.
uint64_t PayloadChecksum(const Segments& payload);

uint64_t RequestChecksum(const internal::v1::PrefillRequest& request);
uint64_t RequestChecksum(const internal::v1::FetchKvRequest& request);
uint64_t RequestChecksum(const internal::v1::OfferKvRequest& request);

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_CHECKSUM_H_
