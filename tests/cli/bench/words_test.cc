#include "cli/bench/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace baton::cli {
namespace {

TEST(BenchWordsTest, WordsAreDifferentAndOfPlainLetters) {
  std::set<absl::string_view> words;
  for (const absl::string_view word : CommonWords()) {
    EXPECT_TRUE(words.insert(word).second) << word;
    ASSERT_FALSE(word.empty());
    for (const char letter : word) EXPECT_TRUE(absl::ascii_islower(letter)) << word;
  }
  // So many words make each prompt of a run another one, at 8 bits a word.
  EXPECT_EQ(words.size(), 256u);
}

TEST(BenchWordsTest, ATextHasAWordForEachId) {
  DatasetOptions options;
  options.num_prompts = 20;
  options.random_prefix_len = 10;
  options.random_input_len = 30;
  options.random_range_ratio = 0.5;
  auto prompts = MakePrompts(options, static_cast<int>(CommonWords().size()), nullptr);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  SpellPrompts(&*prompts);
  const std::vector<std::string> first = absl::StrSplit((*prompts)[0].text, ' ');
  std::set<std::string> texts;
  for (const BenchPrompt& prompt : *prompts) {
    const std::vector<std::string> words = absl::StrSplit(prompt.text, ' ');
    ASSERT_EQ(words.size(), prompt.token_ids.size());
    for (size_t i = 0; i < words.size(); ++i) {
      EXPECT_EQ(words[i], CommonWords()[prompt.token_ids[i]]);
      if (i < 10) {
        EXPECT_EQ(words[i], first[i]) << "the prefix that all share";
      }
    }
    texts.insert(prompt.text);
  }
  EXPECT_EQ(texts.size(), 20u);
}

}  // namespace
}  // namespace baton::cli
