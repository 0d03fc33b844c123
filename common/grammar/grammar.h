// What a client may ask an answer to be: JSON of a schema, a text of a regular expression, or one
// of several texts.
#ifndef BATON_COMMON_GRAMMAR_GRAMMAR_H_
#define BATON_COMMON_GRAMMAR_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace baton::grammar {

struct GrammarSpec {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kChoices };
  Kind kind = Kind::kJsonObject;
  // The schema, the regular expression, or the choices; empty for kJsonObject.
  std::vector<std::string> texts = {};

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

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_GRAMMAR_H_
