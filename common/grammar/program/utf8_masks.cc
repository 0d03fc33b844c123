#include "common/grammar/program/utf8_masks.h"

#include <cstddef>
#include <utility>

#include "common/base/check.h"

namespace baton::grammar {

Utf8Masks::Utf8Masks(std::vector<std::string> token_bytes) : token_bytes_(std::move(token_bytes)) {
  for (size_t state = 0; state < kUtf8States; ++state) {
    allowed_[state].resize((token_bytes_.size() + 31) / 32);
    for (size_t i = 0; i < token_bytes_.size(); ++i) {
      const Utf8State after = After(static_cast<Utf8State>(state), static_cast<int32_t>(i));
      if (after != Utf8State::kInvalid) allowed_[state][i / 32] |= uint32_t{1} << (i % 32);
    }
  }
}

Utf8State Utf8Masks::After(Utf8State state, int32_t token) const {
  const std::string& bytes = token_bytes_.at(static_cast<size_t>(token));
  // The end, or a special token: no character goes on after it.
  if (bytes.empty() && state != Utf8State::kCharacter) return Utf8State::kInvalid;
  for (const char byte : bytes) {
    state = NextUtf8State(state, static_cast<unsigned char>(byte));
  }
  return state;
}

void Utf8Masks::Apply(Utf8State state, absl::Span<uint32_t> mask) const {
  BATON_CHECK(state != Utf8State::kInvalid);
  const std::vector<uint32_t>& allowed = allowed_[static_cast<size_t>(state)];
  BATON_CHECK(mask.size() == allowed.size());
  for (size_t i = 0; i < mask.size(); ++i) mask[i] &= allowed[i];
}

}  // namespace baton::grammar
