// Writes JSON strings from text of any bytes. Reading JSON is common/json's part.
#ifndef BATON_COMMON_BASE_JSON_STRING_H_
#define BATON_COMMON_BASE_JSON_STRING_H_

#include <cstddef>
#include <limits>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// Appends `text` as a JSON string, quotes included. Each invalid byte of UTF-8 becomes "?"; control
// characters, DEL included, are escaped. At most `max_bytes` bytes are appended: a text that is too
// long is cut between characters. REQUIRES: max_bytes >= 2.
void AppendJsonString(absl::string_view text, std::string* out,
                      size_t max_bytes = std::numeric_limits<size_t>::max());

}  // namespace baton

#endif  // BATON_COMMON_BASE_JSON_STRING_H_
