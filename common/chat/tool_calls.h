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
#include "common/chat/call_reader.h"
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

// A part of an answer. A call is a kCall, its kArguments in pieces, and its kCallEnd.
struct AnswerPart {
  enum class Kind : uint8_t { kReasoning, kText, kCall, kArguments, kCallEnd };
  Kind kind;
  std::string text = "";  // of kReasoning, kText and kArguments; not empty
  std::string id = "";    // of kCall: "call_" and 24 characters; of Mistral, 9 characters
  std::string name = "";  // of kCall: the tool's
  bool is_whole = false;  // of kCallEnd: the arguments are a whole JSON object
};

// Adds what follows `parts`. Pieces of one text are one part.
void AppendPart(AnswerPart part, std::vector<AnswerPart>* parts);

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object; if not `is_whole`, the beginning of one
  bool is_whole = false;
};

// What parts add up to.
struct JoinedAnswer {
  void Add(const AnswerPart& part);

  std::string reasoning;
  std::string text;
  std::vector<ToolCall> calls;
};

// Finds text and calls in an answer, in order.
//
// Text comes out as soon as it cannot be a part of a call. White space before, between and after
// calls is dropped, as are the markers, also one that the answer ends within.
//
// A call begins to come out once it has its opener, the name of a tool, and the beginning of its
// arguments: the bracket that opens them or, in formats that are no JSON, the beginning of the
// first value. From there it is a call. Its arguments follow as the model writes them: JSON byte
// for byte; other formats as JSON, a string as it grows and any other value once it is whole. They
// are always the beginning of a JSON object in which no key comes twice. Where the model goes on
// with something else, or the answer or the call's message ends, the call ends too and is not
// whole; what follows is text.
//
// A call of a tool that is not known, or whose name stands behind its arguments, comes out when it
// is complete. What starts like a call before that and is none, or does not end, comes out as text.
// Text that has been such a call is read again for further calls, at most 1 MiB of it in an answer;
// what comes then is text.
//
// One per choice; one thread. The text must have the markers, also those that are special tokens.
// What comes out does not depend on how the text is cut. What is held is a part of a mark, a value
// that comes out whole, or a call that does not come out yet. The time for a text is linear in its
// length.
class ToolCallParser : private CallWriter {
 public:
  using Parts = std::vector<AnswerPart>;

  // REQUIRES: `format` is supported. Ids follow from `id_seed`, which should be random. `tools`, an
  // array as Conversation has it, says which names are known, and which values are strings in
  // formats that do not quote them; null: all names are known, and what is no JSON is a string.
  // `calls_begin`: calls begin the answer, or it has none, so what looks like a call within a JSON
  // answer is text.
  ToolCallParser(ToolCallFormat format, uint64_t id_seed,
                 std::shared_ptr<const json::Value> tools = nullptr, bool calls_begin = false);

  Parts Append(absl::string_view text);
  // One of the messages of an answer in Harmony ends here, and with it an open call, as what
  // follows is no part of its arguments.
  Parts EndMessage();
  // The answer ends here.
  Parts Finish();

 private:
  enum class State : uint8_t { kStart, kFirst, kText, kCall, kBetween, kPlain };

  // CallWriter, for the reader.
  bool Begin(absl::string_view name) override;
  void Write(absl::string_view piece) override;
  void End() override { EndCall(/*is_whole=*/true); }

  // Each returns false when it needs more text.
  bool Step(Parts* parts);
  bool StepStart(Parts* parts);
  bool StepFirst();
  bool StepText(Parts* parts);
  bool StepCall(Parts* parts);
  bool StepBetween(Parts* parts);
  void FinishCall(Parts* parts);
  bool MayBeDropped() const;
  // True if what was dropped has a mark that opens calls, and no call has followed.
  bool DroppedOpening() const;
  void EnterCall(absl::string_view opener);
  void EndCall(bool is_whole);
  void FailCall(Parts* parts);
  void Release(Parts* parts);
  // What is held of a call in a list behind another one.
  absl::string_view HeldInList() const;
  std::string NextId();
  absl::string_view Held() const { return absl::string_view(held_).substr(begin_); }
  // What is held without the white space that it begins with.
  absl::string_view HeldBehindSpace();
  // Takes the first bytes off what is held.
  void Drop(size_t bytes);

  const ToolCallFormat format_;
  const std::shared_ptr<const json::Value> tools_;
  uint64_t id_state_;
  State state_;
  std::string held_;  // from `begin_` on, not yet out; in a call, what follows its opener
  size_t begin_ = 0;
  size_t space_ = 0;  // bytes at the beginning of Held() that are known to be white space
  // No mark that ends text begins in the first `from` bytes of Held().
  struct Search {
    absl::string_view mark;
    size_t from;
  };
  std::vector<Search> searches_;
  std::string dropped_;  // since the last text or call
  std::string opener_;   // of the call, with what was dropped before it
  size_t reread_ = 0;    // bytes of calls that were none
  // These describe what the opener has opened.
  std::unique_ptr<CallReader> reader_;
  size_t read_ = 0;        // bytes of Held()
  Parts pending_;          // of a call that does not come out yet
  bool has_call_ = false;  // a call of it is out
  bool is_open_ = false;   // a call has begun
  bool released_ = false;  // and comes out
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_TOOL_CALLS_H_
