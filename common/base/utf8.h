// Text that must be UTF-8, as protobuf's string fields must: one that is not makes its whole
// message unreadable.
#ifndef BATON_COMMON_BASE_UTF8_H_
#define BATON_COMMON_BASE_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// No surrogates, nothing overlong, nothing above U+10FFFF.
bool IsUtf8(absl::string_view text);

// At most `max_bytes` of it: whole characters, with "?" for every byte that is part of none. What
// was cut off ends in "...", if there is room for that.
std::string ClipToUtf8(absl::string_view text, size_t max_bytes);

}  // namespace baton

#endif  // BATON_COMMON_BASE_UTF8_H_
