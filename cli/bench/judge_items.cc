#include "cli/bench/judge_items.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

constexpr int kMostCounts = 300;  // of tokens, until a text has its length

std::string Word(Random* random) {
  static constexpr char kConsonants[] = "bdfgklmnprstvz", kVowels[] = "aeiou";
  std::string word;
  for (int syllables = random->Between(1, 3); syllables > 0; --syllables) {
    word += kConsonants[random->Between(0, sizeof(kConsonants) - 2)];
    word += kVowels[random->Between(0, sizeof(kVowels) - 2)];
  }
  return word;
}

// What may add a single token: a letter by itself, or at the end of the last word.
std::string Letter(Random* random) {
  const std::string letter(1, static_cast<char>('a' + random->Between(0, 25)));
  return random->Between(0, 1) == 0 ? letter : absl::StrCat(" ", letter);
}

// Returns a text that adds exactly `tokens` to those of `before`, and ends in a line break, so that
// tokenizers begin a new token behind it.
absl::StatusOr<std::string> ExactText(int tokens, const std::string& before,
                                      const TokenCounter& count, Random* random) {
  int already = 0;
  if (!before.empty()) {
    BATON_ASSIGN_OR_RETURN(already, count(before));
  }
  std::vector<std::string> pieces = {Word(random)};
  for (int counts = 0; counts < kMostCounts; ++counts) {
    const std::string text = absl::StrCat(absl::StrJoin(pieces, ""), "\n");
    BATON_ASSIGN_OR_RETURN(const int with, count(before + text));
    const int missing = tokens - (with - already);
    if (missing == 0) return text;
    if (missing < 0) {
      // Words add several tokens each: half of the surplus cannot be too few to drop.
      const size_t drop = std::max(1, -missing / 8);
      pieces.resize(std::max<size_t>(pieces.size() - std::min(pieces.size(), drop), 1));
      if (pieces.size() == 1) pieces[0] = Word(random);
      continue;
    }
    if (missing <= 8) {
      pieces.push_back(Letter(random));
      continue;
    }
    // A word has at most 6 letters and a space, so no more than 7 tokens of a byte each.
    for (int words = std::max(1, missing / 7); words > 0; --words) {
      pieces.push_back(absl::StrCat(" ", Word(random)));
    }
  }
  return absl::InternalError(
      absl::StrCat("found no text of exactly ", tokens, " tokens with this tokenizer"));
}

BenchPrompt Joined(const BenchPrompt& rubric, const BenchPrompt& item) {
  BenchPrompt joined = rubric;
  joined.text += item.text;
  joined.token_ids.insert(joined.token_ids.end(), item.token_ids.begin(), item.token_ids.end());
  return joined;
}

}  // namespace

absl::StatusOr<JudgeSet> MakeJudgeSet(const JudgeShape& shape, int items, int vocab_size,
                                      const TokenCounter& count, Random* random) {
  const auto make = [&](int tokens, const std::string& before) -> absl::StatusOr<BenchPrompt> {
    BenchPrompt prompt;
    if (shape.texts) {
      BATON_ASSIGN_OR_RETURN(prompt.text, ExactText(tokens, before, count, random));
    } else {
      prompt.token_ids = random->Tokens(tokens, vocab_size);
    }
    return prompt;
  };
  JudgeSet set;
  BATON_ASSIGN_OR_RETURN(set.rubric, make(shape.shared_tokens, ""));
  for (int i = 0; i < items; ++i) {
    BATON_ASSIGN_OR_RETURN(const BenchPrompt item, make(shape.own_tokens, set.rubric.text));
    set.items.push_back(Joined(set.rubric, item));
  }
  return set;
}

}  // namespace baton::cli
