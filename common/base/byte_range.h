// Parts of a text, by their bytes: such as those of a prompt that come from a request.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_BASE_BYTE_RANGE_H_
#define BATON_COMMON_BASE_BYTE_RANGE_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace baton {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// The ranges are in order; none is empty, and no two overlap or touch.
using ByteRanges = std::vector<ByteRange>;

// Adds [begin, end) behind the others; joins it to the last one if they touch. Does nothing if it
// is empty. REQUIRES: begin is not before the end of the last one.
void AppendRange(size_t begin, size_t end, ByteRanges* ranges);

// Appends what `ranges` has of [begin, end) of a text, for a copy of that part which starts at the
// byte `to` of another text. REQUIRES: `to` is not before the end of the last one of `out`.
void AppendRangesOfPart(absl::Span<const ByteRange> ranges, size_t begin, size_t end, size_t to,
                        ByteRanges* out);

// True if one of `ranges`, which are as in ByteRanges, has a byte of [begin, end).
bool Overlaps(absl::Span<const ByteRange> ranges, size_t begin, size_t end);

}  // namespace baton

#endif  // BATON_COMMON_BASE_BYTE_RANGE_H_
