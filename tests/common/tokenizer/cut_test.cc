// Cutting a text never changes its tokens, whatever follows the cut.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "tests/common/tokenizer/tokenizer_json.h"
#include "tests/testing/seed.h"

namespace baton::tokenizer {
namespace {

std::vector<int32_t> Encoded(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.Encode(text, /*add_special_tokens=*/true);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

// Of letters, digits, marks, all kinds of white space and line ends, contractions, characters of
// several bytes, and the special tokens themselves.
std::string RandomText(std::mt19937& random, int pieces) {
  const char* parts[] = {"a",   "Bc",     " the",   "\n",   "\n\n",       "\r\n",
                         " ",   "  ",     "\t",     "'s",   "12",         "345",
                         "é",   "\u0301", "…",      "?",    "...",        "\nA",
                         "\nq", "=",      "\u2028", "漢字", "<|im_end|>", "<|endoftext|>",
                         "<|"};
  std::string text;
  for (int i = 0; i < pieces; ++i) text += parts[random() % std::size(parts)];
  return text;
}

TEST(CutTest, WhatFollowsTheCutIsTokenizedAlone) {
  auto loaded = Tokenizer::Load("models/demo");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int cuts = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = RandomText(random, 1 + static_cast<int>(random() % 12));
    const size_t cut = tokenizer.LastCut(text);
    if (cut == 0) continue;
    ++cuts;
    const std::string more = RandomText(random, static_cast<int>(random() % 6));
    std::vector<int32_t> ids = Encoded(tokenizer, text.substr(0, cut));
    const std::vector<int32_t> rest = Encoded(tokenizer, text.substr(cut) + more);
    ids.insert(ids.end(), rest.begin(), rest.end());
    ASSERT_EQ(ids, Encoded(tokenizer, text + more)) << text << "|" << more << ", cut at " << cut;
  }
  EXPECT_GT(cuts, 1000);
}

TEST(CutTest, ItIsTheLastLinesFirstLetter) {
  auto loaded = Tokenizer::Load("models/demo");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->LastCut("one\ntwo\nthree"), 8u);
  EXPECT_EQ((*loaded)->LastCut("one\ntwo\n three\n"), 4u);
  EXPECT_EQ((*loaded)->LastCut("one\ntwo\n4"), 4u);
  EXPECT_EQ((*loaded)->LastCut("one\n"), 0u);
  EXPECT_EQ((*loaded)->LastCut(""), 0u);
}

TEST(CutTest, NoneIsKnownForOtherTokenizers) {
  // A word may go on over a line's end.
  const auto tokenizer = Tokenizer::FromJson(TokenizerJson({"a", "b", "\n"}).dump(), "test");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->LastCut("a\nb"), 0u);
}

}  // namespace
}  // namespace baton::tokenizer
