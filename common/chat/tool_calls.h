// Finds tool calls in the text that a model generates, as the text grows.
#ifndef BATON_COMMON_CHAT_TOOL_CALLS_H_
#define BATON_COMMON_CHAT_TOOL_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/json/json.h"

namespace baton::chat {

// How a model writes a call of the tool `f`.
enum class ToolCallFormat : uint8_t {
  kUnsupported,
  kHermes,    // Hermes, Qwen: <tool_call>{"name": "f", "arguments": {...}}</tool_call>
  kLlama3,    // the whole answer is {"name": "f", "parameters": {...}}, after <|python_tag|> or not
  kMistral,   // [TOOL_CALLS][{"name": "f", "arguments": {...}}] or [TOOL_CALLS]f[ARGS]{...}
  kDeepSeek,  // tokens around f and its arguments, which R1 puts into a block of code
  kQwenXml,   // Qwen 3 Coder:
              // <tool_call><function=f><parameter=a>…</parameter></function></tool_call>
  kGlm,       // <tool_call>f<arg_key>a</arg_key><arg_value>…</arg_value></tool_call>
  kLfm2,      // <|tool_call_start|>[f(a="…")]<|tool_call_end|>
  kGemma4,    // <|tool_call>call:f{a:<|"|>…<|"|>}<tool_call|>
  kHarmony,   // gpt-oss: <|channel|>commentary to=functions.f<|message|>{...}
};

// The format that a chat template describes; kUnsupported if Baton does not know it.
ToolCallFormat DetectToolCallFormat(absl::string_view template_source);

// The marks around calls. Where the tokenizer has one as a special token, the detokenizer must keep
// its text.
absl::Span<const absl::string_view> ToolCallMarkers(ToolCallFormat format);

struct ToolCall {
  std::string id;         // "call_" and 24 characters; of Mistral, 9 characters
  std::string name;       // of the tool
  std::string arguments;  // a JSON object
};

// Text comes out as soon as it cannot be a part of a call. A call comes out when its arguments are
// complete; in formats that do not quote values, at the mark that ends it. White space before,
// between and after calls is dropped, as are the markers, also one that the answer ends within.
// What starts like a call and is none, or does not end, comes out as text.
//
// One per choice; one thread. The text must have the markers, also those that are special tokens.
class ToolCallParser {
 public:
  struct Delta {
    std::string text;
    std::vector<ToolCall> calls;
  };

  // REQUIRES: `format` is supported. Ids follow from `id_seed`, which should be random. `tools`, an
  // array as Conversation has it, says which values are strings in formats that do not quote them;
  // null: what is no JSON is a string. `calls_begin`: calls begin the answer, or it has none, so
  // what looks like a call within a JSON answer is text.
  ToolCallParser(ToolCallFormat format, uint64_t id_seed,
                 std::shared_ptr<const json::Value> tools = nullptr, bool calls_begin = false);

  Delta Append(absl::string_view text);
  // The answer ends here.
  Delta Finish();

 private:
  enum class State : uint8_t { kStart, kFirst, kText, kCall, kBetween, kPlain };

  // Each returns false when it needs more text.
  bool Step(Delta* delta);
  bool StepStart();
  bool StepFirst();
  bool StepText(Delta* delta);
  bool StepCall(Delta* delta);
  bool StepBareCall(Delta* delta);
  // False if the text is no call; nullopt if it may be the beginning of one.
  std::optional<bool> ParseBareCalls(absl::string_view text, Delta* delta);
  bool StepBetween(Delta* delta);
  bool ParseUnmarkedCalls(Delta* delta);
  bool MayBeDropped() const;
  // True if what was dropped has a mark that opens calls, and no call has followed.
  bool DroppedOpening() const;
  void EnterCall(absl::string_view opener);
  void FailCall(Delta* delta);
  bool ParseCalls(absl::string_view header, absl::string_view json, Delta* delta);
  std::string NextId();

  const ToolCallFormat format_;
  const std::shared_ptr<const json::Value> tools_;
  uint64_t id_state_;
  State state_;
  std::string held_;     // not yet out; in a call, what follows its opener
  std::string dropped_;  // since the last text or call
  std::string opener_;   // of the call, with what was dropped before it
  int ends_ = 0;         // marks that have not ended a call, since the last call
  // These describe the JSON value in held_.
  size_t json_start_ = std::string::npos;
  size_t scanned_ = 0;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_TOOL_CALLS_H_
