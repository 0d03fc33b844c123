// What a client may ask an answer to be: JSON of a schema, a text of a regular expression, one of
// several texts, or calls of tools.
#ifndef BATON_COMMON_GRAMMAR_GRAMMAR_H_
#define BATON_COMMON_GRAMMAR_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton::grammar {

struct GrammarSpec {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kChoices, kToolCalls };
  Kind kind = Kind::kJsonObject;
  // The schema, the regular expression, the choices, or what ToolCallTexts makes of tools; empty
  // for kJsonObject.
  std::vector<std::string> texts = {};
  // What the model may write before (inference.proto); absent: the grammar holds from the first
  // token on.
  struct Reasoning {
    std::string begin = {};
    std::string end = {};
    friend auto operator<=>(const Reasoning&, const Reasoning&) = default;
  };
  std::optional<Reasoning> reasoning = {};
  bool any_whitespace = false;  // between tokens of JSON; else kMaxWhitespace characters in a row

  friend auto operator<=>(const GrammarSpec&, const GrammarSpec&) = default;
};

// Bounds of what is compiled. Checked before anything is parsed.
inline constexpr size_t kMaxSchemaBytes = size_t{64} << 10;
inline constexpr size_t kMaxSchemaDepth = 32;     // of JSON inside JSON
inline constexpr size_t kMaxSchemaValues = 8192;  // numbers, strings, arrays, objects, …
inline constexpr size_t kMaxEnumValues = 1024;    // of one enum
inline constexpr size_t kMaxRegexBytes = size_t{4} << 10;
inline constexpr size_t kMaxChoiceCount = 256;
inline constexpr size_t kMaxChoiceBytes = size_t{1} << 10;
inline constexpr size_t kMaxTools = 128;
inline constexpr size_t kMaxToolNameBytes = size_t{2} << 10;
inline constexpr size_t kMaxParametersBytes = size_t{256} << 10;  // of all tools
inline constexpr size_t kMaxCallTextBytes = 256;                  // of each text of the format
inline constexpr size_t kMaxExcludedTexts = 16;
inline constexpr size_t kMaxMessageTexts = 4;          // what begins messages before an answer
inline constexpr size_t kMaxReasoningTextBytes = 256;  // of each text around it
inline constexpr size_t kMaxSpecTexts = 512;           // of any kind; more than any has

// Characters of white space in a row between two tokens of JSON: enough to indent, too little to
// fill an answer.
inline constexpr int kMaxWhitespace = 16;

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_GRAMMAR_H_
