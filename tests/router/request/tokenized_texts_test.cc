#include "router/request/tokenized_texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

constexpr char kEnd[] = "<|im_end|>";  // an added token of the demo model

class TokenizedTextsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = tokenizer::Tokenizer::Load("models/demo");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    Keep(int64_t{64} << 20);
  }
  void Keep(int64_t max_bytes) {
    texts_ = std::make_unique<TokenizedTexts>(*tokenizer_, max_bytes,
                                              [this](size_t known_bytes, size_t bytes) {
                                                known_bytes_ = known_bytes;
                                                EXPECT_LE(known_bytes, bytes);
                                              });
  }
  // Checks the tokens; returns how many bytes of the text were known.
  size_t Known(const std::string& text, const std::string& tenant = "t", bool special = false,
               const ByteRanges& split = {}) {
    known_bytes_ = 0;
    const auto ids = texts_->Encode(tenant, text, special, split);
    const auto whole = tokenizer_->Encode(text, special, split);
    EXPECT_TRUE(ids.ok() && whole.ok());
    if (ids.ok() && whole.ok()) {
      EXPECT_EQ(**ids, *whole) << "of " << text.size() << " bytes";
    }
    return known_bytes_;
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<TokenizedTexts> texts_;
  size_t known_bytes_ = 0;
};

std::string Turn(const std::string& text) { return absl::StrCat(text, kEnd, "\n"); }

// A conversation of `bytes` bytes or a little more.
std::string Talk(char letter, size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) {
    text += Turn(absl::StrCat(std::string(1, letter), " word ", i, std::string(100, letter)));
  }
  return text;
}

TEST_F(TokenizedTextsTest, AConversationIsTokenizedFromWhereItGoesOn) {
  std::string text = Talk('a', 20'000);
  EXPECT_EQ(Known(text), 0u);
  EXPECT_GT(Known(text), text.size() - 300) << "the same again";
  for (int turn = 0; turn < 5; ++turn) {
    const size_t before = text.size();
    text += Turn(absl::StrCat("And then? ", turn, std::string(700, 'x')));
    EXPECT_GT(Known(text), before - 20) << "up to the last end of a turn";
  }
  EXPECT_LT(texts_->bytes(), 2 * (20'000 + 4'000) * 5) << "one text: the last";
  // An edit in the middle: what is before it is known.
  std::string edited = text;
  edited[10'000] = '?';
  EXPECT_GT(Known(edited), 9'000u);
  EXPECT_LE(known_bytes_, 10'000u);
  EXPECT_GT(Known(text), text.size() - 300) << "both are kept";
}

TEST_F(TokenizedTextsTest, ATextThatIsFoundNoMoreIsNotKept) {
  const std::string talk = Talk('a', 20'000);
  Known(talk + Turn("first"));
  const int64_t one = texts_->bytes();
  // They differ in the last chunk, which has no key.
  for (const char* const end : {"second", "third", "fourth"}) {
    EXPECT_GT(Known(talk + Turn(end)), talk.size() - 300);
    EXPECT_LT(texts_->bytes(), one + one / 4);
  }
  // Another branch has a chunk of its own, as the first one has then.
  const std::string branch = talk + Turn(std::string(5'000, 'b'));
  Known(talk + Turn(std::string(5'000, 'c')));
  Known(branch);
  EXPECT_GT(texts_->bytes(), 2 * one);
  EXPECT_GE(Known(talk + Turn(std::string(5'000, 'c')) + Turn("on")), talk.size() + 5'000);
  EXPECT_GE(Known(branch + Turn("on")), talk.size() + 5'000);
}

TEST_F(TokenizedTextsTest, ShortTextsAndThoseWithoutAnAddedTokenAreNotKept) {
  EXPECT_EQ(Known(Talk('a', 1000)), 0u);
  EXPECT_EQ(Known(std::string(50'000, 'a')), 0u);
  EXPECT_EQ(texts_->bytes(), 0);
  EXPECT_EQ(Known(Turn("")), 0u);
  EXPECT_EQ(Known(""), 0u);
}

TEST_F(TokenizedTextsTest, TenantsShareNothing) {
  const std::string text = Talk('a', 20'000);
  EXPECT_EQ(Known(text, "t"), 0u);
  EXPECT_EQ(Known(text, "u"), 0u);
  EXPECT_EQ(Known(text, ""), 0u);
  EXPECT_GT(Known(text, "u"), 0u);
}

TEST_F(TokenizedTextsTest, WhatIsSplitIsAPartOfTheText) {
  const std::string text = Talk('a', 20'000);
  const size_t end = text.size();
  EXPECT_EQ(Known(text, "t", false, {{5'000, 6'000}, {15'000, end}}), 0u);
  EXPECT_EQ(Known(text), 0u) << "no part at all is another way to encode";
  EXPECT_GT(Known(text, "t", false, {{5'000, 6'000}, {15'000, end}}), 14'000u);
  EXPECT_GT(Known(text, "t", false, {{5'000, 6'000}, {14'000, end}}), 13'000u);
  EXPECT_LE(known_bytes_, 14'000u);
  EXPECT_LE(Known(text, "t", false, {{5'000, 6'001}, {14'000, end}}), 6'000u);
  EXPECT_EQ(Known(text, "t", true, {{5'000, 6'000}, {15'000, end}}), 0u);
}

TEST_F(TokenizedTextsTest, MemoryIsBoundedAndTakenFromTheTenantWithMost) {
  constexpr int64_t kMost = 1 << 20;
  Keep(kMost);
  const std::string quiet = Talk('q', 20'000);
  Known(quiet, "quiet");
  for (int i = 0; i < 200; ++i) {
    Known(Talk(static_cast<char>('a' + i % 26), 20'000 + 1'000 * (i % 20)), "busy");
    ASSERT_LE(texts_->bytes(), kMost);
  }
  EXPECT_GT(texts_->bytes(), kMost / 3);
  EXPECT_GT(Known(quiet, "quiet"), 0u);
  EXPECT_EQ(Known(Talk('z', 4 << 20), "busy"), 0u);
  EXPECT_EQ(Known(Talk('z', 4 << 20), "busy"), 0u) << "a text that does not fit is not kept";
  Keep(0);
  EXPECT_EQ(Known(quiet), 0u);
  EXPECT_EQ(Known(quiet), 0u);
}

TEST_F(TokenizedTextsTest, AnErrorIsTheTokenizers) {
  std::string text = Talk('a', 20'000);
  Known(text);
  text += "\xff";
  const auto ids = texts_->Encode("t", text, false, {});
  EXPECT_EQ(ids.status(), tokenizer_->Encode(text, false).status());
}

// Conversations that branch, go on, are cut, and are edited, of two tenants.
TEST_F(TokenizedTextsTest, TokensAreAlwaysThoseOfTheWholeText) {
  Keep(400'000);
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> talks = {Talk('s', 6'000)};
  size_t known = 0;
  for (int i = 0; i < 300; ++i) {
    std::string text = talks[random() % talks.size()];
    switch (random() % 8) {
      case 0:
        text.resize(std::max<size_t>(2'000, text.size() - random() % 1'000));
        break;
      case 1:
        text[random() % text.size()] = '<';
        break;
      default:
        text += Turn(absl::StrCat(random() % 9, std::string(random() % 900, 'w'), " <|im_",
                                  random() % 2 == 0 ? "end|>" : "x"));
    }
    if (text.size() > 60'000) text.resize(8'000);
    ByteRanges split;
    if (random() % 2 == 0) split = {{10, 20}, {text.size() / 2, text.size() / 2 + 300}};
    known += Known(text, random() % 4 == 0 ? "u" : "t", random() % 8 == 0, split);
    talks.push_back(text);
    if (talks.size() > 12) talks.erase(talks.begin() + static_cast<int>(random() % 12));
  }
  EXPECT_GT(known, 100'000u);
}

TEST_F(TokenizedTextsTest, ManyThreadsAtOnce) {
  TokenizedTexts texts(*tokenizer_, 300'000, [](size_t, size_t) {});
  const std::string base = Talk('a', 9'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string text = base;
      for (int i = 0; i < 40; ++i) {
        const auto ids = texts.Encode(i % 5 == 0 ? "u" : "t", text, false, {});
        EXPECT_EQ(**ids, *tokenizer_->Encode(text, false));
        if (i % 3 == 0) text += Turn(absl::StrCat(t, " ", i));
        if (i % 11 == 0) text = base;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(texts.bytes(), 300'000);
}

}  // namespace
}  // namespace baton::router
