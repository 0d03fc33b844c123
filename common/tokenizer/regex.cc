#include "common/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

// The JIT's own 32 KiB do not hold the back-tracking of long matches.
constexpr size_t kJitStackStartBytes = 32 << 10;
constexpr size_t kJitStackMaxBytes = 8 << 20;
// A bound on the work for one match; the published patterns stay far below on any text.
constexpr uint32_t kMatchLimit = 50'000'000;

// What one thread needs to match; shared by all patterns, as no match outlives its call.
class ThreadState {
 public:
  ThreadState()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)) {
    BATON_CHECK(data_ != nullptr && context_ != nullptr) << "out of memory";
    pcre2_set_match_limit(context_, kMatchLimit);
    // Without JIT there is no stack, and none is needed.
    if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~ThreadState() {
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  pcre2_match_data* data() { return data_; }
  pcre2_match_context* context() { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

std::string ErrorText(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

absl::Status MatchFailed(int error, size_t offset) {
  return MakeError(absl::StatusCode::kInvalidArgument, "TEXT_TOO_COMPLEX",
                   absl::StrCat("the tokenizer's pattern gave up near byte ", offset,
                                " of the text: ", ErrorText(error)));
}

}  // namespace

class Matcher::Program {
 public:
  explicit Program(pcre2_code* code)
      : code_(code), has_jit_(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0) {}
  ~Program() { pcre2_code_free(code_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // As pcre2_match. The text was checked once, as a whole, so nothing is checked here.
  int Match(absl::string_view text, size_t start, ThreadState* state) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    if (has_jit_) {
      return pcre2_jit_match(code_, subject, text.size(), start, 0, state->data(),
                             state->context());
    }
    return pcre2_match(code_, subject, text.size(), start, PCRE2_NO_UTF_CHECK, state->data(),
                       state->context());
  }

 private:
  pcre2_code* code_;
  bool has_jit_;
};

Matcher::Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

absl::StatusOr<Matcher> Matcher::Regex(absl::string_view pattern) {
  BATON_ASSIGN_OR_RETURN(const std::string translated, TranslateOniguruma(pattern));
  int error;
  PCRE2_SIZE offset;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (code == nullptr) {
    return MakeError(absl::StatusCode::kInvalidArgument, "BAD_TOKENIZER",
                     absl::StrCat("a regular expression expected, but near byte ", offset, " of '",
                                  translated, "': ", ErrorText(error)));
  }
  Matcher matcher;
  matcher.program_ = std::make_unique<Program>(code);
  matcher.pattern_ = std::string(pattern);
  return matcher;
}

absl::StatusOr<Matcher> Matcher::Literal(absl::string_view text) {
  if (text.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "BAD_TOKENIZER",
                     "a pattern of at least one character expected");
  }
  Matcher matcher;
  matcher.pattern_ = std::string(text);
  return matcher;
}

absl::Status Matcher::ForEachLiteral(absl::string_view text,
                                     absl::FunctionRef<void(size_t, size_t)> found) const {
  for (size_t at = text.find(pattern_); at != absl::string_view::npos;
       at = text.find(pattern_, at + pattern_.size())) {
    found(at, at + pattern_.size());
  }
  return absl::OkStatus();
}

absl::Status Matcher::ForEachMatch(absl::string_view text,
                                   absl::FunctionRef<void(size_t begin, size_t end)> found) const {
  if (program_ == nullptr) return ForEachLiteral(text, found);
  static thread_local ThreadState state;
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data());
  bool any = false;
  size_t last_end = 0;
  for (size_t start = 0; start <= text.size();) {
    // Never negative for a match: the whole match fits, its groups are not kept.
    const int result = program_->Match(text, start, &state);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) return MatchFailed(result, start);
    const size_t begin = range[0];
    const size_t end = range[1];
    const bool empty = begin >= end;
    if (!empty || !any || begin != last_end) {
      found(begin, end);
      any = true;
      last_end = end;
    }
    start = end;
    if (empty) start += end < text.size() ? Utf8CharBytes(text[end]) : 1;
  }
  return absl::OkStatus();
}

}  // namespace baton::tokenizer
