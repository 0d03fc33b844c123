// Cutting a text never changes its tokens, whatever follows the cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
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

// The tokens of the longest beginning that the bytes in common decide, and of the rest alone, are
// those of the whole, whatever an earlier text had behind the bytes in common.
void ExpectOnwardEqualsWhole(const Tokenizer& tokenizer, std::mt19937& random,
                             const std::function<std::string(int)>& random_text, int rounds,
                             int least_reused) {
  int reused = 0;
  for (int i = 0; i < rounds; ++i) {
    const std::string begin = random_text(static_cast<int>(random() % 14));
    const std::string earlier_text = begin + random_text(static_cast<int>(random() % 6));
    const std::string text = begin + random_text(static_cast<int>(random() % 6));
    const size_t same =
        std::mismatch(earlier_text.begin(),
                      earlier_text.begin() + std::min(earlier_text.size(), text.size()),
                      text.begin())
            .first -
        earlier_text.begin();
    const auto split_of = [&](const std::string& of) {
      ByteRanges split;  // the same in all that is in common
      std::mt19937 places(static_cast<uint32_t>(i));
      for (size_t at = places() % 8; at < of.size();) {
        const size_t end = std::min(of.size(), at + 1 + places() % 12);
        split.push_back({at, end});
        at = end + 1 + places() % 40;
      }
      return split;
    };
    ByteRanges split, earlier_split;
    if (i % 2 == 1) {
      split = split_of(text);
      earlier_split = split_of(earlier_text);
      if (split.empty() != earlier_split.empty()) continue;
    }
    const bool special = random() % 2 == 0;
    const auto earlier =
        tokenizer.EncodeOnward(earlier_text, special, earlier_split, Tokenizer::Encoded(), 0);
    ASSERT_TRUE(earlier.ok()) << earlier.status();
    const auto onward = tokenizer.EncodeOnward(text, special, split, *earlier, same);
    ASSERT_TRUE(onward.ok()) << onward.status();
    const auto whole = tokenizer.EncodeOnward(text, special, split, Tokenizer::Encoded(), 0);
    ASSERT_TRUE(whole.ok()) << whole.status();
    ASSERT_EQ(onward->ids, whole->ids)
        << earlier_text << "|" << text << ", known " << onward->known_bytes;
    ASSERT_EQ(onward->cuts.size(), whole->cuts.size());
    for (size_t k = 0; k < whole->cuts.size(); ++k) {
      ASSERT_EQ(onward->cuts[k].byte, whole->cuts[k].byte);
      ASSERT_EQ(onward->cuts[k].token, whole->cuts[k].token);
    }
    if (onward->known_bytes > 0) ++reused;
  }
  EXPECT_GT(reused, least_reused);
}

TEST(CutTest, ATextGoesOnFromAnEarlierOnesTokens) {
  auto loaded = Tokenizer::Load("models/demo");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  ExpectOnwardEqualsWhole(
      **loaded, random, [&](int pieces) { return RandomText(random, pieces); }, 20'000, 2000);
}

// Added tokens that overlap, begin each other, take white space, stand alone, or are normalised.
TEST(CutTest, SoDoesOneWithAddedTokensOfEveryKind) {
  nlohmann::json json =
      TokenizerJson({"a", "b", "c", " ", "<", ">", "x", "l", "r", "w", "s", "\n"});
  int id = 100;
  const auto add = [&](const std::string& content, const char* property, bool special) {
    nlohmann::json token = AddedTokenJson(id++, content, special);
    if (property != nullptr) token[property] = true;
    json["added_tokens"].push_back(std::move(token));
  };
  add("<x>", nullptr, true);
  add("<x>>", nullptr, true);
  add("x><", nullptr, false);
  add("<l>", "lstrip", true);
  add("<r>", "rstrip", true);
  add("<w>", "single_word", true);
  add(" s", "single_word", true);
  add("cc", "normalized", false);
  const auto tokenizer = Tokenizer::FromJson(json.dump(), "test");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const char* parts[] = {"a",   "b",   "c",   " ",   "  ", "<",  ">",  "x",    "<x>", "<x>>",
                         "x><", "<l>", "<r>", "<w>", " s", "cc", "<x", "<x>a", "\n"};
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  ExpectOnwardEqualsWhole(
      **tokenizer, random,
      [&](int pieces) {
        std::string text;
        for (int i = 0; i < pieces; ++i) text += parts[random() % std::size(parts)];
        return text;
      },
      20'000, 500);
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
