// Where a text can be cut whatever follows it.
#include <algorithm>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_parts.h"

namespace baton::tokenizer {
namespace {

// The patterns of GPT-2, Llama 3 and Qwen 2. They match from the left and look one character ahead.
// No alternative matches a letter behind a line's end, so that a line's first letter begins a word,
// and the words before it end there, whatever follows.
constexpr absl::string_view kCutAtLines[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

struct SplitsAtLines {
  bool operator()(const Split& split) const {
    return split.behavior == SplitBehavior::kIsolated && !split.invert &&
           absl::c_linear_search(kCutAtLines, split.pattern.pattern());
  }
  // Its regular expression is GPT-2's.
  bool operator()(const ByteLevelSplit& split) const {
    return !split.add_prefix_space && split.use_regex;
  }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }
};

// Leaves the words as they are.
bool OnlySpellsBytes(const PreTokenizer& pre_tokenizer) {
  const auto* byte_level = std::get_if<ByteLevelSplit>(&pre_tokenizer);
  return byte_level != nullptr && !byte_level->add_prefix_space && !byte_level->use_regex;
}

bool CutsAtLines(const Pipeline& pipeline, const std::vector<AddedToken>& added_tokens) {
  // A Unicode form changes no line's end and no ASCII letter behind one.
  const bool normal = absl::c_all_of(pipeline.normalizers, [](const Normalizer& normalizer) {
    return std::holds_alternative<UnicodeForm>(normalizer);
  });
  const std::vector<PreTokenizer>& steps = pipeline.pre_tokenizers;
  return normal && pipeline.special_tokens.suffix.empty() && !steps.empty() &&
         std::visit(SplitsAtLines(), steps.front()) &&
         std::all_of(steps.begin() + 1, steps.end(), OnlySpellsBytes) &&
         // No added token is cut, or takes what is before the cut.
         absl::c_none_of(added_tokens, [](const AddedToken& token) {
           return token.pattern.find('\n') != std::string::npos ||
                  absl::ascii_isalpha(static_cast<unsigned char>(token.pattern.front()));
         });
}

}  // namespace

size_t Tokenizer::LastCut(absl::string_view text) const {
  if (!CutsAtLines(parts_->pipeline, parts_->added_tokens)) return 0;
  for (size_t end = text.size(); end >= 2; --end) {
    const bool letter = absl::ascii_isalpha(static_cast<unsigned char>(text[end - 1]));
    if (letter && text[end - 2] == '\n') return end - 1;
  }
  return 0;
}

}  // namespace baton::tokenizer
