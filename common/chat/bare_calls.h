// Tool calls whose arguments are no JSON object: marks around keys and values, calls of Python, and
// objects with keys and strings of their own.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_CHAT_BARE_CALLS_H_
#define BATON_COMMON_CHAT_BARE_CALLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/chat/tool_calls.h"
#include "common/json/json.h"

namespace baton::chat {

// What ends a call; empty for formats whose arguments are JSON objects.
absl::string_view BareCallEnd(ToolCallFormat format);

struct BareCall {
  std::string name;
  json::Value arguments;  // an object
};

enum class BareCallsResult : uint8_t {
  kCalls,
  kIncomplete,  // what seemed to end the call is a part of a value
  kNone,        // no call
};

// Reads what stands between the mark that begins a call and the one that ends it. `tools`: an array
// as Conversation has it, or null. A value without quotes is text where the parameter of its tool
// is a string; else JSON of a type that the parameter has, and else text.
BareCallsResult ReadBareCalls(ToolCallFormat format, absl::string_view text,
                              const json::Value* tools, std::vector<BareCall>* calls);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_BARE_CALLS_H_
