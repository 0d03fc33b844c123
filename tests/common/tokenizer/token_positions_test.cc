#include "common/tokenizer/token_positions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/base/utf8.h"
#include "tests/common/tokenizer/tokenizer_json.h"
#include "tests/testing/seed.h"

namespace baton::tokenizer {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kNoToken = 9999;

std::vector<int64_t> PositionsOf(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                 TextPosition position = TextPosition::kContinuation,
                                 const std::vector<int32_t>& hidden = {}) {
  TokenPositions positions(tokenizer, position);
  std::vector<int64_t> begins;
  for (const int32_t id : ids) {
    positions.Append(id, std::count(hidden.begin(), hidden.end(), id) > 0, &begins);
  }
  positions.Finish(&begins);
  return begins;
}

TEST(TokenPositionsTest, TokensOfOneCharacterBeginThere) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  EXPECT_THAT(PositionsOf(*tokenizer, {0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 'z'}),  // é😀z
              ElementsAre(0, 0, 1, 1, 1, 1, 2));
}

TEST(TokenPositionsTest, ABrokenCharacterIsOne) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  EXPECT_THAT(PositionsOf(*tokenizer, {0xE2, 0x82, 'b', 0xFF, 0xC3, 0xC3, 0xA9, 0xC3}),
              ElementsAre(0, 0, 1, 2, 3, 4, 4, 5));
}

TEST(TokenPositionsTest, HiddenTokensAndIdsWithoutATokenTakeNoRoom) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  EXPECT_THAT(PositionsOf(*tokenizer, {'x', 'a', 0xC3, 'x', 0xA9, kNoToken, 'b'},
                          TextPosition::kContinuation, {'x'}),
              ElementsAre(0, 0, 1, 1, 1, 2, 2));
}

TEST(TokenPositionsTest, ARunOfByteTokensIsKnownWhenItHasEnded) {
  const auto tokenizer = MakeTokenizer(FallbackJson());
  TokenPositions positions(*tokenizer, TextPosition::kContinuation);
  std::vector<int64_t> begins;
  positions.Append(259, false, &begins);  // !
  for (const int32_t id : {0x61, 0xC3, 0xA9}) positions.Append(id, false, &begins);
  positions.Append(261, /*hidden=*/true, &begins);
  EXPECT_THAT(begins, ElementsAre(0));
  positions.Append(256, false, &begins);  // " Hello"
  EXPECT_THAT(begins, ElementsAre(0, 1, 2, 2, 3, 3));
  for (const int32_t id : {0xC3, 0xA9, 0xFF}) positions.Append(id, false, &begins);
  positions.Finish(&begins);
  EXPECT_THAT(begins, ElementsAre(0, 1, 2, 2, 3, 3, 9, 10, 11)) << "three U+FFFD";
}

TEST(TokenPositionsTest, ATextsFirstSpaceMayBeNone) {
  const auto tokenizer = MakeTokenizer(FallbackJson());
  EXPECT_THAT(PositionsOf(*tokenizer, {256, 257}, TextPosition::kStart), ElementsAre(0, 5));
  EXPECT_THAT(PositionsOf(*tokenizer, {256, 257}, TextPosition::kContinuation), ElementsAre(0, 6));
  EXPECT_THAT(PositionsOf(*tokenizer, {261, 256, 257}, TextPosition::kStart, {261}),
              ElementsAre(0, 0, 5));
}

// A token begins at the last character of the text that ends with its first byte.
TEST(TokenPositionsTest, AnyBytesBeginWhereTheirTextDoes) {
  std::mt19937_64 random(testing::TestSeed());
  // Bytes of which many sequences are valid, and many are not.
  const std::vector<int32_t> bytes = {'a',  0x80, 0xA9, 0x9F, 0xBF, 0xC3,
                                      0xE2, 0xED, 0xF0, 0xF4, 0xFF};
  nlohmann::json json = ByteLevelJson();
  const std::vector<std::string> words = {"a\xC3",    "\xA9z",    "\x9F\x98\x80",
                                          "\xE2\x82", "\xC3\xA9", "z\xF0\x9F"};
  for (const std::string& word : words) {
    json["model"]["vocab"][BytesToNames(word)] = json["model"]["vocab"].size();
  }
  const auto tokenizer = MakeTokenizer(json);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> ids, spelled;
    std::vector<int64_t> expected;
    for (size_t left = random() % 24; left > 0; --left) {
      const size_t pick = random() % (bytes.size() + words.size());
      ids.push_back(pick < bytes.size() ? bytes[pick]
                                        : static_cast<int32_t>(256 + pick - bytes.size()));
      const std::string token = *tokenizer->BytesOf(ids.back());
      for (size_t i = 0; i < token.size(); ++i) {
        spelled.push_back(static_cast<unsigned char>(token[i]));
        if (i == 0) expected.push_back(CountCharacters(*tokenizer->Decode(spelled, false)) - 1);
      }
    }
    EXPECT_EQ(PositionsOf(*tokenizer, ids), expected) << ::testing::PrintToString(ids);
  }
}

}  // namespace
}  // namespace baton::tokenizer
