// Tool calls whose arguments are no JSON object: marks around keys and values, calls of Python, and
// objects with keys and strings of their own.
#ifndef BATON_COMMON_CHAT_BARE_CALLS_H_
#define BATON_COMMON_CHAT_BARE_CALLS_H_

#include <memory>

#include "common/chat/call_reader.h"
#include "common/chat/tool_calls.h"
#include "common/json/json.h"

namespace baton::chat {

// Arguments come out member by member. A string comes out as it grows where quotes or the schema
// say that it is one; any other value once it has ended. A call begins to come out with its first
// value, or as it ends.
//
// `tools`: an array as Conversation has it, or null. A value without quotes is text where the
// parameter of its tool is a string; else JSON of a type that the parameter has, and else text.
// REQUIRES: `format` is kQwenXml or kGlm. `tools` must outlive the reader.
std::unique_ptr<CallReader> NewXmlCallReader(ToolCallFormat format, const json::Value* tools);

// The same for the values of Python and of Gemma 4, which have quotes.
// REQUIRES: `format` is kLfm2 or kGemma4.
std::unique_ptr<CallReader> NewLiteralCallReader(ToolCallFormat format);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_BARE_CALLS_H_
