#include "common/base/byte_range.h"

#include <algorithm>

namespace baton {
namespace {

// The first range that ends behind `at`.
const ByteRange* FirstEndingBehind(absl::Span<const ByteRange> ranges, size_t at) {
  return std::upper_bound(ranges.data(), ranges.data() + ranges.size(), at,
                          [](size_t value, const ByteRange& range) { return value < range.end; });
}

}  // namespace

void AppendRange(size_t begin, size_t end, ByteRanges* ranges) {
  if (begin >= end) return;
  if (!ranges->empty() && ranges->back().end == begin) {
    ranges->back().end = end;
  } else {
    ranges->push_back({begin, end});
  }
}

void AppendRangesOfPart(absl::Span<const ByteRange> ranges, size_t begin, size_t end, size_t to,
                        ByteRanges* out) {
  const ByteRange* const last = ranges.data() + ranges.size();
  for (const ByteRange* range = FirstEndingBehind(ranges, begin);
       range != last && range->begin < end; ++range) {
    AppendRange(to + std::max(range->begin, begin) - begin, to + std::min(range->end, end) - begin,
                out);
  }
}

bool Overlaps(absl::Span<const ByteRange> ranges, size_t begin, size_t end) {
  const ByteRange* const range = FirstEndingBehind(ranges, begin);
  return begin < end && range != ranges.data() + ranges.size() && range->begin < end;
}

}  // namespace baton
