// Search for markers in text that arrives in pieces.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_CHAT_MARKERS_H_
#define BATON_COMMON_CHAT_MARKERS_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace baton::chat {

inline bool IsProperPrefix(absl::string_view text, absl::string_view whole) {
  return text.size() < whole.size() && absl::StartsWith(whole, text);
}

// The bytes at the end of `text` that may be the start of `marker`.
inline size_t HeldBytes(absl::string_view text, absl::string_view marker) {
  for (size_t size = std::min(text.size(), marker.size()); size > 0; --size) {
    if (IsProperPrefix(text.substr(text.size() - size), marker)) return size;
  }
  return 0;
}

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_MARKERS_H_
