#include "common/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/testing/seed.h"

namespace baton::tokenizer {
namespace {

// The definition, by trying all pairs: what the queues must equal.
std::vector<int32_t> MergeNaively(const BpeSpec& spec, std::vector<int32_t> units) {
  while (true) {
    size_t best_rank = spec.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < units.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        const BpeSpec::Merge& merge = spec.merges[rank];
        if (merge.left != units[i] || merge.right != units[i + 1]) continue;
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == spec.merges.size()) return units;
    units[best] = spec.merges[best_rank].merged;
    units.erase(units.begin() + best + 1);
  }
}

// Random merges over "a", "b", "c".
BpeSpec RandomSpec(std::mt19937* random) {
  Vocabulary vocabulary(64);
  std::vector<std::string> tokens = {"a", "b", "c"};
  for (size_t i = 0; i < tokens.size(); ++i) vocabulary.Add(tokens[i], static_cast<int32_t>(i));
  std::vector<BpeSpec::Merge> merges;
  while (tokens.size() < 20) {
    const int32_t left = (*random)() % tokens.size();
    const int32_t right = (*random)() % tokens.size();
    const std::string merged = tokens[left] + tokens[right];
    if (merged.size() > 8 || vocabulary.Find(merged)) continue;
    const int32_t id = static_cast<int32_t>(tokens.size());
    vocabulary.Add(merged, id);
    tokens.push_back(merged);
    merges.push_back({left, right, id});
  }
  // Ranks in any order: a merge may come before those that make its sides.
  std::shuffle(merges.begin(), merges.end(), *random);
  BpeSpec spec(std::move(vocabulary));
  spec.merges = std::move(merges);
  return spec;
}

BpeSpec Copy(const BpeSpec& spec) {
  Vocabulary vocabulary(spec.vocabulary.id_limit());
  for (size_t id = 0; id < spec.vocabulary.id_limit(); ++id) {
    const std::string* token = spec.vocabulary.Token(static_cast<int32_t>(id));
    if (token != nullptr) vocabulary.Add(*token, static_cast<int32_t>(id));
  }
  BpeSpec copy(std::move(vocabulary));
  copy.merges = spec.merges;
  return copy;
}

void CompareWords(const std::vector<size_t>& lengths, int models) {
  std::mt19937 random(testing::TestSeed(3));
  for (int model = 0; model < models; ++model) {
    const BpeSpec spec = RandomSpec(&random);
    const Bpe bpe(Copy(spec), /*byte_level=*/model % 2 == 0);
    for (const size_t length : lengths) {
      std::string word;
      std::vector<int32_t> units;
      for (size_t i = 0; i < length; ++i) {
        units.push_back(random() % (model % 3 == 0 ? 1 : 3));
        word.push_back(static_cast<char>('a' + units.back()));
      }
      std::vector<int32_t> ids;
      bpe.Encode(word, /*may_be_special=*/true, &ids);
      ASSERT_EQ(ids, MergeNaively(spec, units)) << word;
      ids.clear();
      bpe.Encode(word, /*may_be_special=*/true, &ids);  // now perhaps from the table of known words
      ASSERT_EQ(ids, MergeNaively(spec, units)) << word;
    }
  }
}

TEST(BpeTest, ShortWordsEqualTheDefinition) {
  std::vector<size_t> lengths;
  for (size_t length = 0; length <= 30; ++length) lengths.push_back(length);
  CompareWords(lengths, 200);
}

TEST(BpeTest, LongWordsEqualTheDefinition) { CompareWords({100, 500}, 20); }

TEST(BpeTest, VeryLongWordsEqualTheDefinition) { CompareWords({2100, 2500}, 12); }

void CompareCutWords(const std::vector<const char*>& tokens,
                     const std::vector<BpeSpec::Merge>& merges) {
  Vocabulary vocabulary(16);
  int32_t id = 0;
  for (const char* token : tokens) vocabulary.Add(token, id++);
  BpeSpec spec(std::move(vocabulary));
  spec.merges = merges;
  const Bpe bpe(Copy(spec), /*byte_level=*/false);
  std::mt19937 random(testing::TestSeed(5));
  for (int round = 0; round < 500; ++round) {
    std::string word;
    std::vector<int32_t> units;
    for (int i = 0; i < 60; ++i) {
      units.push_back(random() % 3);
      word += *spec.vocabulary.Token(units.back());
    }
    std::vector<int32_t> ids;
    bpe.Encode(word, /*may_be_special=*/true, &ids);
    ASSERT_EQ(ids, MergeNaively(spec, units)) << word;
  }
}

TEST(BpeTest, CuttingAtMetaspaceChangesNothing) {
  CompareCutWords({"▁", "a", "b", "▁a", "▁▁", "ab", "▁ab", "▁▁▁▁"},
                  {{0, 0, 4}, {0, 1, 3}, {1, 2, 5}, {3, 2, 6}, {4, 4, 7}});
}

// As Gemma's ">▁</".
TEST(BpeTest, TokensThatCrossMetaspaceAreNotCut) {
  CompareCutWords({"▁", "a", "b", "▁a", "▁b", "b▁a", "ab", "▁ab"},
                  {{0, 1, 3}, {2, 3, 5}, {0, 2, 4}, {1, 2, 6}, {3, 2, 7}});
}

TEST(BpeTest, ModelsShareAThreadsTableOfWords) {
  std::mt19937 random(testing::TestSeed(9));
  const BpeSpec spec = RandomSpec(&random);
  BpeSpec plain = Copy(spec);
  plain.merges.clear();
  const Bpe merging(Copy(spec), true);
  const Bpe splitting(std::move(plain), true);
  for (int round = 0; round < 3; ++round) {
    std::vector<int32_t> ids;
    splitting.Encode("abcabc", /*may_be_special=*/true, &ids);
    EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
    ids.clear();
    merging.Encode("abcabc", /*may_be_special=*/true, &ids);
    EXPECT_EQ(ids, MergeNaively(spec, {0, 1, 2, 0, 1, 2}));
  }
}

}  // namespace
}  // namespace baton::tokenizer
