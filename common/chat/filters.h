// The filters and tests of jinja2's expressions: value | filter, value is test. The first
// positional argument is the value.
#ifndef BATON_COMMON_CHAT_FILTERS_H_
#define BATON_COMMON_CHAT_FILTERS_H_

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/chat/runtime.h"

namespace baton::chat {

using FilterTable = absl::flat_hash_map<absl::string_view, Builtin>;

// Null if there is none.
Builtin FindFilter(absl::string_view name);
// Each returns a bool.
Builtin FindTest(absl::string_view name);

// The parts of FindFilter's table.
const FilterTable& TextFilters();
const FilterTable& SequenceFilters();

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_FILTERS_H_
