// Tool calls whose arguments are JSON objects.
#ifndef BATON_COMMON_CHAT_JSON_CALLS_H_
#define BATON_COMMON_CHAT_JSON_CALLS_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "common/chat/call_reader.h"
#include "common/chat/tool_calls.h"

namespace baton::chat {

// What stands between a name and its arguments.
inline constexpr absl::string_view kDeepSeekSeparator = "<｜tool▁sep｜>";

// A call is an object with its name and its arguments, in a list or not, or its name stands before
// its arguments. The arguments come out as the model writes them, byte for byte, once their bracket
// opens behind the name; where they stand before the name, once the call ends.
//
// REQUIRES: `format` is kHermes, kLlama3, kMistral, kDeepSeek or kHarmony.
std::unique_ptr<CallReader> NewJsonCallReader(ToolCallFormat format);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_JSON_CALLS_H_
