#include "router/request/prompt_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>

#include "common/base/error.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

void AddSegment(v1::PromptSource source, int length, v1::GenerateRequest* request) {
  v1::PromptSegment* segment = request->add_segments();
  segment->set_source(source);
  segment->set_length(length);
}

int TokensOf(const std::vector<SourceRun>& runs) {
  return std::accumulate(runs.begin(), runs.end(), 0,
                         [](int sum, const SourceRun& run) { return sum + run.tokens; });
}

class PromptSourcesTest : public ::testing::Test {
 protected:
  PromptSourcesTest() : tokenizer_(*tokenizer::Tokenizer::Load("models/demo")) {}
  std::vector<SourceRun> Runs(const v1::GenerateRequest& request) {
    EXPECT_TRUE(CheckSegments(request).ok()) << CheckSegments(request);
    tokens_ = *tokenizer_->Encode(request.text(), true);
    auto runs = SourcesOf(request, tokens_, *tokenizer_);
    EXPECT_TRUE(runs.ok()) << runs.status();
    return *std::move(runs);
  }
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::vector<int32_t> tokens_;
};

TEST_F(PromptSourcesTest, ATokenCountsForTheSegmentWithItsFirstByte) {
  v1::GenerateRequest request;
  request.set_text("Once upon a time, there was a little girl.");
  const std::vector<int32_t> plain = *tokenizer_->Encode(request.text(), false);
  // Cut within each token, and at its end.
  size_t end = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const size_t begin = end;
    end += tokenizer_->Decode(absl::MakeConstSpan(&plain[i], 1), false)->size();
    for (size_t cut = begin + 1; cut <= end; ++cut) {
      request.clear_segments();
      AddSegment(v1::PROMPT_SOURCE_SYSTEM, static_cast<int>(cut), &request);
      AddSegment(v1::PROMPT_SOURCE_USER, static_cast<int>(request.text().size() - cut), &request);
      const std::vector<SourceRun> runs = Runs(request);
      const int special = static_cast<int>(tokens_.size() - plain.size());
      ASSERT_EQ(runs.size(), 2u);
      EXPECT_EQ(runs[0].tokens, static_cast<int>(i) + 1 + special) << cut;
    }
  }
  EXPECT_EQ(end, request.text().size()) << "the test relies on tokens that are parts of the text";
}

// Characters of one to four bytes, cut anywhere; then cached and dropped anywhere.
TEST_F(PromptSourcesTest, SumsAreExact) {
  const std::vector<std::string> pieces = {"a", " the", "é", "漢", "😀", "\n\n", "ing ", "<|end|>"};
  std::mt19937 random(testing::TestSeed(20261124));
  for (int round = 0; round < 300; ++round) {
    v1::GenerateRequest request;
    std::string text;
    while (request.segments_size() < 6) {
      const size_t begin = text.size();
      for (unsigned i = random() % 8; i > 0; --i) text += pieces[random() % pieces.size()];
      AddSegment(static_cast<v1::PromptSource>(random() % 6), static_cast<int>(text.size() - begin),
                 &request);
    }
    if (text.empty()) continue;
    request.set_text(text);
    std::vector<SourceRun> runs = Runs(request);
    ASSERT_EQ(TokensOf(runs), static_cast<int>(tokens_.size())) << text;
    const int first = static_cast<int>(random() % tokens_.size());
    const int dropped = static_cast<int>(random() % (tokens_.size() - first));
    DropTokens(first, dropped, &runs);
    const int left = static_cast<int>(tokens_.size()) - dropped;
    ASSERT_EQ(TokensOf(runs), left) << text;
    const int cached = static_cast<int>(random() % (static_cast<unsigned>(left) + 1));
    v1::Usage usage;
    FillBySource(runs, cached, &usage);
    FillBySource(runs, cached, &usage);  // replaces
    int tokens = 0, found = 0;
    for (const v1::SourceUsage& source : usage.by_source()) {
      ASSERT_GE(source.tokens(), source.cached());
      tokens += source.tokens();
      found += source.cached();
    }
    ASSERT_EQ(tokens, left);
    ASSERT_EQ(found, cached);
  }
}

TEST_F(PromptSourcesTest, CachedTokensAreThoseAtTheStart) {
  v1::Usage usage;
  FillBySource({{{v1::PROMPT_SOURCE_SYSTEM, 10},
                 {v1::PROMPT_SOURCE_HISTORY, 20},
                 {v1::PROMPT_SOURCE_SYSTEM, 5}}},
               16, &usage);
  ASSERT_EQ(usage.by_source_size(), 2);
  EXPECT_EQ(usage.by_source(0).source(), v1::PROMPT_SOURCE_SYSTEM);
  EXPECT_EQ(usage.by_source(0).tokens(), 15);
  EXPECT_EQ(usage.by_source(0).cached(), 10);
  EXPECT_EQ(usage.by_source(1).cached(), 6);
}

TEST_F(PromptSourcesTest, TokenIdsAreCounted) {
  v1::GenerateRequest request;
  for (int id : {1, 2, 3, 4}) request.mutable_token_ids()->add_ids(id);
  AddSegment(v1::PROMPT_SOURCE_TOOLS, 1, &request);
  AddSegment(v1::PROMPT_SOURCE_USER, 3, &request);
  ASSERT_TRUE(CheckSegments(request).ok());
  const auto runs = SourcesOf(request, request.token_ids().ids(), *tokenizer_);
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_EQ((*runs)[0].tokens, 1);
  EXPECT_EQ((*runs)[1].tokens, 3);
}

TEST_F(PromptSourcesTest, SegmentsMustCoverThePrompt) {
  const auto reason = [](std::initializer_list<int> lengths) {
    v1::GenerateRequest request;
    request.set_text("aé");
    for (int length : lengths) AddSegment(v1::PROMPT_SOURCE_USER, length, &request);
    return ErrorReason(CheckSegments(request));
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({3}), "");
  EXPECT_EQ(reason({0, 1, 2, 0}), "");
  EXPECT_EQ(reason({1}), "BAD_SEGMENTS");
  EXPECT_EQ(reason({4}), "BAD_SEGMENTS");
  EXPECT_EQ(reason({2, 1}), "BAD_SEGMENTS") << "within a character";
  EXPECT_EQ(reason({5, -2}), "BAD_SEGMENTS");
  v1::GenerateRequest request;
  request.set_text("a");
  for (int i = 0; i < 1025; ++i) AddSegment(v1::PROMPT_SOURCE_USER, i == 0 ? 1 : 0, &request);
  EXPECT_EQ(ErrorReason(CheckSegments(request)), "OUT_OF_RANGE");
  request.clear_segments();
  AddSegment(static_cast<v1::PromptSource>(77), 1, &request);
  EXPECT_EQ(ErrorReason(CheckSegments(request)), "OUT_OF_RANGE");
  request.mutable_messages();
  EXPECT_EQ(ErrorReason(CheckSegments(request)), "NOT_WITH_MESSAGES");
}

}  // namespace
}  // namespace baton::router
