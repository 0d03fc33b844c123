#include "common/tokenizer/incremental_detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "common/tokenizer/unicode.h"
#include "tests/common/tokenizer/tokenizer_json.h"
#include "tests/testing/seed.h"

namespace baton::tokenizer {
namespace {

using Json = nlohmann::json;

std::string Append(IncrementalDetokenizer* detokenizer, std::vector<int32_t> ids) {
  const auto text = detokenizer->Append(ids);
  return text.ok() ? *text : text.status().ToString();
}

TEST(IncrementalDetokenizerTest, HoldsUnfinishedCharacters) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  IncrementalDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(Append(&detokenizer, {'a', 0xF0}), "a");
  EXPECT_EQ(Append(&detokenizer, {0x9F}), "");
  EXPECT_EQ(Append(&detokenizer, {}), "");
  EXPECT_EQ(Append(&detokenizer, {0x98, 0x80, 0xE2}), "😀");
  EXPECT_EQ(Append(&detokenizer, {'b'}), "\uFFFDb");
  EXPECT_EQ(Append(&detokenizer, {0xE2, 0x82}), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(IncrementalDetokenizerTest, GenuineReplacementCharacterComesAtOnce) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  IncrementalDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(Append(&detokenizer, {0xEF, 0xBF, 0xBD}), "\uFFFD");
}

TEST(IncrementalDetokenizerTest, HoldsRunsOfByteTokens) {
  const auto tokenizer = MakeTokenizer(FallbackJson());
  IncrementalDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(Append(&detokenizer, {256, 0xC3}), "Hello");
  EXPECT_EQ(Append(&detokenizer, {0xA9}), "");  // a bad byte after it would spoil it
  EXPECT_EQ(Append(&detokenizer, {259}), "é!");
  EXPECT_EQ(Append(&detokenizer, {0xC3, 0xA9, 0xFF}), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD\uFFFD\uFFFD");
}

TEST(IncrementalDetokenizerTest, APatternThatGivesUpOnTheLastRunCostsItsTextOnly) {
  Json json = FallbackJson();
  json["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "ByteFallback"}},
        {{"type", "Replace"}, {"pattern", {{"Regex", "(?:a+)+[xy]"}}}, {"content", ""}}}}};
  const auto tokenizer = MakeTokenizer(json);
  IncrementalDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(Append(&detokenizer, {259}), "!");
  EXPECT_EQ(Append(&detokenizer, std::vector<int32_t>(5000, 'a')), "");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(IncrementalDetokenizerTest, ContinuationKeepsItsSpace) {
  const auto tokenizer = MakeTokenizer(FallbackJson());
  IncrementalDetokenizer start(*tokenizer);
  EXPECT_EQ(Append(&start, {261, 256, 257}), "Hello world");
  IncrementalDetokenizer continuation(*tokenizer, true, TextPosition::kContinuation);
  EXPECT_EQ(Append(&continuation, {257, 258}), " world ");
}

TEST(IncrementalDetokenizerTest, MetaspaceDecoderDropsOnlyTheFirstSpace) {
  Json json = FallbackJson();
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}};
  const auto tokenizer = MakeTokenizer(json);
  IncrementalDetokenizer start(*tokenizer);
  EXPECT_EQ(Append(&start, {256}), "Hello");
  EXPECT_EQ(Append(&start, {257}), " world");
  IncrementalDetokenizer continuation(*tokenizer, true, TextPosition::kContinuation);
  EXPECT_EQ(Append(&continuation, {256}), " Hello");
}

TEST(IncrementalDetokenizerTest, NoDecoderJoinsBySpaces) {
  Json json = TokenizerJson({"a", "b"});
  const auto tokenizer = MakeTokenizer(json);
  IncrementalDetokenizer start(*tokenizer);
  EXPECT_EQ(Append(&start, {0}), "a");
  EXPECT_EQ(Append(&start, {1, 0}), " b a");
  IncrementalDetokenizer continuation(*tokenizer, true, TextPosition::kContinuation);
  EXPECT_EQ(Append(&continuation, {0}), " a");
}

TEST(IncrementalDetokenizerTest, StripAtTheEndIsHeldBack) {
  Json json = TokenizerJson({"a", "_", "_b_"});
  json["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", "_"}, {"start", 1}, {"stop", 1}}}}};
  const auto tokenizer = MakeTokenizer(json);
  IncrementalDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(Append(&detokenizer, {1, 0}), "a");
  EXPECT_EQ(Append(&detokenizer, {1}), "");
  EXPECT_EQ(Append(&detokenizer, {1}), "_");
  EXPECT_EQ(Append(&detokenizer, {2}), "__b");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(IncrementalDetokenizerTest, SpecialTokens) {
  const auto tokenizer = MakeTokenizer(FallbackJson());
  IncrementalDetokenizer skipping(*tokenizer);
  EXPECT_EQ(Append(&skipping, {261, 256, 261}), "Hello");
  IncrementalDetokenizer keeping(*tokenizer, /*skip_special_tokens=*/false);
  EXPECT_EQ(Append(&keeping, {261, 256, 261}), "<s> Hello<s>");
}

TEST(IncrementalDetokenizerTest, UnknownIdTakesNothing) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  IncrementalDetokenizer detokenizer(*tokenizer);
  EXPECT_FALSE(detokenizer.Append({'a', 999}).ok());
  EXPECT_EQ(Append(&detokenizer, {'b'}), "b");
}

// Random ids in random chunks: equal to Decode, every part whole UTF-8.
TEST(IncrementalDetokenizerTest, EqualsDecodeForAnyChunks) {
  std::mt19937 random(testing::TestSeed(7));
  for (const Json& json : {ByteLevelJson(), FallbackJson()}) {
    const auto tokenizer = MakeTokenizer(json);
    for (int round = 0; round < 3000; ++round) {
      std::vector<int32_t> ids;
      if (round % 2 == 0) {
        for (const unsigned char byte :
             std::string("a👨‍👩‍👧é\u0301日🏳️‍🌈 ñ"))
          ids.push_back(byte);
        if (round % 4 == 0) ids.erase(ids.begin() + random() % ids.size());
      } else {
        for (size_t i = random() % 12; i > 0; --i)
          ids.push_back(random() % tokenizer->vocab_size());
      }
      IncrementalDetokenizer detokenizer(*tokenizer);
      std::string text;
      for (size_t i = 0; i < ids.size();) {
        const size_t count = std::min<size_t>(random() % 5, ids.size() - i);
        const std::string part = Append(&detokenizer, {ids.begin() + i, ids.begin() + i + count});
        ASSERT_FALSE(FindInvalidUtf8(part)) << round;
        text += part;
        i += count;
      }
      ASSERT_EQ(text + detokenizer.Flush(), *tokenizer->Decode(ids, true)) << round;
    }
  }
}

}  // namespace
}  // namespace baton::tokenizer
