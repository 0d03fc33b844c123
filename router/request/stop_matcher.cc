#include "router/request/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton::router {

std::string StopMatcher::Append(absl::string_view piece, bool may_match) {
  BATON_CHECK(!matched_) << "text after a stop string";
  const size_t old_bytes = held_.size();
  held_.append(piece.data(), piece.size());
  size_t match_begin = 0, match_end = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!may_match) break;
    // What ends in the text held back was complete there, and so was not to match.
    const size_t first = old_bytes < stop.size() ? 0 : old_bytes - stop.size() + 1;
    const size_t begin = held_.find(stop, first);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < match_end || (end == match_end && begin < match_begin)) {
      match_begin = begin;
      match_end = end;
      matched_ = stop;
    }
  }
  const size_t keep = matched_ ? held_.size() - match_begin : HeldBytes();
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, matched_ ? std::string::npos : out.size());
  return out;
}

std::string StopMatcher::Flush() { return std::exchange(held_, std::string()); }

// The longest end of the text that begins a stop string. Stop strings are whole UTF-8, so the cut
// falls between characters.
size_t StopMatcher::HeldBytes() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > longest; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) longest = length;
    }
  }
  return longest;
}

}  // namespace baton::router
