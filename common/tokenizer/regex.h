// The regular expressions of tokenizer.json, which are written for Oniguruma (Hugging Face's
// engine), run by PCRE2 with JIT. The table in regex_syntax.cc lists where the two differ.
#ifndef BATON_COMMON_TOKENIZER_REGEX_H_
#define BATON_COMMON_TOKENIZER_REGEX_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// Rewrites an Oniguruma pattern so that PCRE2 (UTF, UCP, MULTILINE) matches the same text.
// INVALID_ARGUMENT, naming the construct, if the pattern uses one that PCRE2 interprets differently
// and that this function cannot rewrite.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

// Finds a regular expression or a literal. Thread-safe: match state is per thread.
class Matcher {
 public:
  // INVALID_ARGUMENT if the pattern does not compile or has an untranslatable construct.
  static absl::StatusOr<Matcher> Regex(absl::string_view pattern);
  // INVALID_ARGUMENT if `text` is empty.
  static absl::StatusOr<Matcher> Literal(absl::string_view text);

  // As given; the literal itself.
  const std::string& pattern() const { return pattern_; }

  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();

  // Calls `found` with the byte range of every match, in order, without overlap. An empty match is
  // reported only if it is not adjacent to the previous match.
  // REQUIRES: valid UTF-8. INVALID_ARGUMENT, reason "TEXT_TOO_COMPLEX", if PCRE2's limit on
  // steps or memory is exceeded, which no text does with the published patterns.
  absl::Status ForEachMatch(absl::string_view text,
                            absl::FunctionRef<void(size_t begin, size_t end)> found) const;

 private:
  class Program;
  Matcher();
  absl::Status ForEachLiteral(absl::string_view text,
                              absl::FunctionRef<void(size_t, size_t)> found) const;

  std::unique_ptr<const Program> program_;  // null for a literal
  std::string pattern_;
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_REGEX_H_
