// Percent-encoding of URLs (RFC 3986, 2.1). Stateless; thread-safe.
#ifndef BATON_COMMON_BASE_PERCENT_DECODED_H_
#define BATON_COMMON_BASE_PERCENT_DECODED_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// The bytes that `text` stands for; nothing if a '%' is not followed by two hexadecimal digits.
std::optional<std::string> PercentDecoded(absl::string_view text);

}  // namespace baton

#endif  // BATON_COMMON_BASE_PERCENT_DECODED_H_
