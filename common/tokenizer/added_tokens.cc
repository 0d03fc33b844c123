#include "common/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

uint64_t ChildKey(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

bool BesideWord(absl::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordChar(FirstChar(LastCharBytes(text.substr(0, begin))))) return true;
  return end < text.size() && IsWordChar(FirstChar(text.substr(end)));
}

// The start of the white space that ends at `end`, but not before `floor`.
size_t StartOfSpaceBefore(absl::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const absl::string_view last = LastCharBytes(text.substr(0, end));
    if (!IsWhitespace(FirstChar(last))) break;
    end -= last.size();
  }
  return std::max(end, floor);
}

size_t EndOfSpaceAfter(absl::string_view text, size_t begin) {
  while (begin < text.size() && IsWhitespace(FirstChar(text.substr(begin)))) {
    begin += Utf8CharBytes(text[begin]);
  }
  return begin;
}

}  // namespace

bool AddedTokenFinder::Add(const AddedToken* token) {
  const std::string& pattern = token->pattern;
  BATON_CHECK(!pattern.empty() && pattern.size() <= kMaxPatternBytes) << pattern.size();
  uint32_t node = 0;
  for (const char byte : pattern) {
    const auto [child, is_new] =
        children_.try_emplace(ChildKey(node, byte), static_cast<uint32_t>(tokens_.size()));
    node = child->second;
    if (is_new) tokens_.push_back(nullptr);
  }
  if (tokens_[node] != nullptr) return false;
  tokens_[node] = token;
  is_first_byte_[static_cast<unsigned char>(pattern[0])] = true;
  return true;
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::LongestAt(
    absl::string_view text, size_t begin, absl::Span<const ByteRange> split, size_t* read) const {
  std::optional<Match> longest;
  uint32_t node = 0;
  size_t i = begin;
  for (; i < text.size(); ++i) {
    const auto child = children_.find(ChildKey(node, text[i]));
    if (child == children_.end()) break;
    node = child->second;
    const AddedToken* const token = tokens_[node];
    if (token == nullptr || (token->special && Overlaps(split, begin, i + 1))) continue;
    longest = Match{token, i + 1};
  }
  *read = std::max(*read, i + 1);
  return longest;
}

absl::Status AddedTokenFinder::ForEachPart(
    absl::string_view text, absl::Span<const ByteRange> split,
    absl::FunctionRef<absl::Status(const Part&)> visit) const {
  constexpr size_t kCharBytes = 4;
  size_t covered = 0;
  size_t read = 0;
  // The search goes on behind the token itself, not behind the space that rstrip takes.
  for (size_t at = 0; at < text.size();) {
    std::optional<Match> match;
    if (is_first_byte_[static_cast<unsigned char>(text[at])])
      match = LongestAt(text, at, split, &read);
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = *match->token;
    size_t begin = at;
    size_t end = match->end;
    at = end;
    if (token.single_word) {
      read = std::max(read, end + kCharBytes);
      if (BesideWord(text, begin, end)) continue;
    }
    if (token.lstrip) begin = StartOfSpaceBefore(text, begin, covered);
    if (token.rstrip) end = EndOfSpaceAfter(text, end);
    if (covered < begin) BATON_RETURN_IF_ERROR(visit({nullptr, covered, begin, read}));
    BATON_RETURN_IF_ERROR(visit({&token, begin, end, read}));
    covered = end;
  }
  if (covered < text.size()) return visit({nullptr, covered, text.size(), read});
  return absl::OkStatus();
}

}  // namespace baton::tokenizer
