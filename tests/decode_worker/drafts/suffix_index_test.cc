#include "decode_worker/drafts/suffix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int kLongest = SuffixIndex::kLongestMatch;
constexpr int kMost = SuffixIndex::kMostMatches;

SuffixIndex IndexOf(const Tokens& text, int window = 1 << 17) {
  SuffixIndex index(window);
  for (const int32_t token : text) index.Append(token);
  return index;
}

std::vector<SuffixIndex::Match> Found(const SuffixIndex& index, const Tokens& suffix,
                                      int enough = kLongest, int most = kMost) {
  const SuffixIndex::Matches matches = index.Find(suffix, enough, most);
  return {matches.begin(), matches.end()};
}

using Places = std::vector<SuffixIndex::Match>;

TEST(SuffixIndexTest, FindsTheLongestMatch) {
  //                              0  1  2  3  4  5  6  7  8  9  10
  const SuffixIndex index = IndexOf({1, 2, 3, 4, 5, 9, 3, 4, 6, 9, 7});
  EXPECT_EQ(Found(index, {2, 3, 4}), (Places{{4, 3}, {8, 2}}));
  EXPECT_EQ(Found(index, {1, 2, 3, 4}), (Places{{4, 4}}));
  EXPECT_EQ(Found(index, {8, 9}), (Places{{10, 1}, {6, 1}}))
      << "equally long ones: the latest first";
  EXPECT_EQ(Found(index, {8}), Places{});
  EXPECT_EQ(Found(index, {7}), Places{}) << "nothing follows it";
  EXPECT_EQ(Found(index, {}), Places{});
}

TEST(SuffixIndexTest, TheEndOfTheTextDoesNotMatchItself) {
  EXPECT_EQ(Found(IndexOf({5, 6, 7}), {5, 6, 7}), Places{});
  EXPECT_EQ(Found(IndexOf({5, 6, 5}), {5, 6, 5}), (Places{{1, 1}}));
  const SuffixIndex index = IndexOf({5, 5, 5, 5});
  EXPECT_EQ(Found(index, {5, 5, 5, 5}), (Places{{3, 3}, {2, 2}}))
      << "a match may overlap the suffix";
}

TEST(SuffixIndexTest, LengthsFromEnoughOnAreEqual) {
  const SuffixIndex index = IndexOf({1, 2, 3, 4, 5, 0, 3, 4, 6, 0, 4, 7});
  EXPECT_EQ(Found(index, {1, 2, 3, 4}, /*enough=*/2), (Places{{8, 2}, {4, 4}}));
  EXPECT_EQ(Found(index, {1, 2, 3, 4}, /*enough=*/1), (Places{{11, 1}, {8, 2}, {4, 4}}));
  EXPECT_EQ(Found(index, {1, 2, 3, 4}, /*enough=*/1, /*most=*/1), (Places{{11, 1}}));
  EXPECT_EQ(Found(index, {1, 2, 3, 4}, /*enough=*/0), Places{});
  EXPECT_EQ(Found(index, {1, 2, 3, 4}, kLongest, /*most=*/0), Places{});
}

TEST(SuffixIndexTest, NoMatchCrossesASeparator) {
  const int32_t sep = SuffixIndex::kSeparator;
  const SuffixIndex index = IndexOf({1, 2, sep, 3, 4, sep, 3, 9, sep});
  EXPECT_EQ(Found(index, {1, 2}), Places{}) << "what follows is another text";
  EXPECT_EQ(Found(index, {2, 3}), (Places{{7, 1}, {4, 1}}));
  EXPECT_EQ(Found(index, {2, sep, 3}), (Places{{7, 1}, {4, 1}}))
      << "separators do not match each other";
  EXPECT_EQ(Found(index, {2, sep}), Places{});
  EXPECT_EQ(Found(IndexOf({1, -7, 2, 3, -7, 2}), {-7, 2}), (Places{{3, 1}}))
      << "all negative tokens are separators";
}

TEST(SuffixIndexTest, WhatTheWindowHasLeftIsNotFound) {
  SuffixIndex index = IndexOf({1, 2, 3, 4, 5}, /*window=*/4);
  EXPECT_EQ(index.begin(), 1u);
  EXPECT_EQ(index.end(), 5u);
  EXPECT_EQ(index.size(), 4);
  EXPECT_EQ(index.at(1), 2);
  EXPECT_EQ(Found(index, {1}), Places{});
  EXPECT_EQ(Found(index, {1, 2, 3}), (Places{{3, 2}})) << "the first of the tokens is out";
  index.Append(6);
  EXPECT_EQ(Found(index, {1, 2, 3}), (Places{{3, 1}}));
  index.Append(7);
  EXPECT_EQ(Found(index, {1, 2, 3}), Places{});
}

// Every part of a text is still found after the tables have grown, and memory stays in proportion.
TEST(SuffixIndexTest, GrowsWithTheText) {
  SuffixIndex index(1 << 14);
  EXPECT_LE(index.bytes(), 4096u) << "the window is not allocated ahead";
  for (int32_t token = 0; token < 100'000; ++token) {
    index.Append(token);
    ASSERT_LE(index.bytes(), 20'480 + 29 * static_cast<size_t>(index.size()));
    if (token % 1000 != 999) continue;
    for (int32_t past = std::max(4, token - (1 << 14) + 5); past < token; past += 37) {
      ASSERT_EQ(Found(index, {past - 3, past - 2, past - 1, past}),
                (Places{{static_cast<uint64_t>(past) + 1, 4}}))
          << past << " of " << token;
    }
  }
}

// Places as the header states them, by looking everywhere.
Places Everywhere(const Tokens& text, size_t window, const Tokens& suffix, int enough, int most) {
  const size_t begin = text.size() - std::min(text.size(), window);
  Places all;
  for (size_t next = text.size(); next-- > begin;) {
    if (text[next] < 0) continue;
    size_t length = 0;
    while (length < suffix.size() && length < static_cast<size_t>(kLongest) &&
           next - length > begin && suffix[suffix.size() - 1 - length] >= 0 &&
           text[next - 1 - length] == suffix[suffix.size() - 1 - length]) {
      ++length;
    }
    if (length > 0) all.push_back({next, static_cast<int>(length)});
  }
  for (const int tokens : {4, 2, 1}) {
    if (tokens > enough) continue;
    Places of_chain;
    std::copy_if(all.begin(), all.end(), std::back_inserter(of_chain),
                 [&](const SuffixIndex::Match& match) { return match.length >= tokens; });
    if (of_chain.empty()) continue;
    std::stable_sort(of_chain.begin(), of_chain.end(),
                     [&](const SuffixIndex::Match& a, const SuffixIndex::Match& b) {
                       return std::min(a.length, enough) > std::min(b.length, enough);
                     });
    of_chain.resize(std::min(of_chain.size(), static_cast<size_t>(most)));
    return of_chain;
  }
  return {};
}

TEST(SuffixIndexTest, RandomTextsAgainstLookingEverywhere) {
  std::mt19937 random(testing::TestSeed());
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<uint32_t>(bound));
  };
  int compared = 0;
  int truncated = 0;
  for (int round = 0; round < 150; ++round) {
    const int distinct = std::vector<int>{1, 2, 4, 12, 60, 1000}[static_cast<size_t>(below(6))];
    const int window = std::vector<int>{1, 3, 64, 256, 700, 1 << 17}[static_cast<size_t>(below(6))];
    const bool one_text = below(2) == 0;
    Tokens text;
    SuffixIndex index(window);
    const int length = 1 + below(1200);
    while (static_cast<int>(text.size()) < length) {
      Tokens part;
      if (below(12) == 0 &&
          text.size() > 100) {  // a repetition, up to longer than the longest match
        const int from = below(static_cast<int>(text.size()) - 90);
        part.assign(text.begin() + from, text.begin() + from + 1 + below(90));
      } else {
        part = {!one_text && below(40) == 0 ? -1 - below(2) : below(distinct)};
      }
      for (const int32_t token : part) {
        text.push_back(token);
        index.Append(token);
      }
      if (below(10) != 0) continue;
      Tokens suffix = text;  // its own, or that of another text with the same tokens
      if (below(2) == 0) {
        const int from = below(static_cast<int>(text.size()));
        suffix.assign(text.begin() + from,
                      text.begin() + from + below(static_cast<int>(text.size()) - from + 1));
        if (below(2) == 0) suffix.push_back(below(distinct));
      }
      const int enough = below(3) == 0 ? 1 + below(6) : kLongest;
      const int most = 1 + below(kMost);
      const SuffixIndex::Matches found = index.Find(suffix, enough, most);
      if (found.steps >= SuffixIndex::kMostStepsOfChain) {  // a chain may have been longer
        ++truncated;
        ASSERT_LE(found.steps, SuffixIndex::kChains * SuffixIndex::kMostStepsOfChain);
        const Places all = Everywhere(text, static_cast<size_t>(window), suffix, 1, 1 << 30);
        for (const SuffixIndex::Match& match : found) {
          ASSERT_NE(std::find(all.begin(), all.end(), match), all.end())
              << "there is no such match";
        }
        continue;
      }
      ++compared;
      ASSERT_EQ(Places(found.begin(), found.end()),
                Everywhere(text, static_cast<size_t>(window), suffix, enough, most))
          << "round " << round << ", " << distinct << " distinct, window " << window << ", enough "
          << enough << ", most " << most << ", text of " << text.size() << ", suffix of "
          << suffix.size();
    }
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(truncated, 10);
}

// Texts that make chains as long as the text.
TEST(SuffixIndexTest, WalksAreBounded) {
  for (const int period : {1, 2, 7, 63, 65}) {
    SuffixIndex index(1 << 17);
    Tokens text;
    for (int i = 0; i < 20'000; ++i) {
      // The last token of some periods differs each time, so that nothing is longer than a period.
      text.push_back(period > 60 && i % period == 0 ? 1000 + i : i % std::min(period, 7));
      index.Append(text.back());
      const SuffixIndex::Matches found = index.Find(
          absl::MakeConstSpan(text).last(std::min<size_t>(text.size(), 64)), kLongest, kMost);
      ASSERT_LE(found.steps, SuffixIndex::kChains * SuffixIndex::kMostStepsOfChain);
    }
  }
}

}  // namespace
}  // namespace baton::decode_worker
