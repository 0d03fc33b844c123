// A draft model's KV: it follows the sequences' tokens, whatever becomes of the drafts.
#include "decode_worker/draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "decode_worker/request.h"
#include "tests/decode_worker/fake_engine.h"
#include "tests/router/fake_clock.h"

namespace baton::decode_worker {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::FakeEngine;
using ::testing::HasSubstr;

class DraftModelTest : public ::testing::Test {
 protected:
  void Make(int blocks, DraftModel::Options options = {}) {
    model_.reset();
    engine_ = std::make_unique<FakeEngine>(blocks);
    engine_->mtp = options.kind == DraftModel::Kind::kMtpHead;
    engine_->on_step = [this](const engine::Batch& batch) {
      ++steps_;
      rows_ += batch.rows();
    };
    model_ = std::make_unique<DraftModel>(*engine_, options, clock_);
  }
  std::unique_ptr<Sequence> NewSequence(int prompt_tokens, const std::string& salt = "") {
    internal::v1::DecodeRequest request;
    request.set_request_id("test");
    for (int i = 0; i < prompt_tokens; ++i) request.add_tokens(i % 100);
    request.mutable_sampling()->set_top_p(1);
    request.set_max_tokens(100);
    request.set_cache_salt(salt);
    auto sequence = MakeSequence(request, absl::InfiniteFuture(), answers_);
    sequence->id = ++last_id_;
    return sequence;
  }
  void CatchUp(const Sequence& sequence, int most_tokens = 10'000) {
    const Sequence* const one[] = {&sequence};
    model_->CatchUp(one, most_tokens);
    model_->CheckIntegrity();
  }
  std::vector<int32_t> Draft(const Sequence& sequence, int count) {
    DraftModel::Drafting line = {.sequence = &sequence};
    model_->Missing(sequence);
    while (static_cast<int>(line.drafts.size()) < count && !line.ended) {
      DraftModel::Drafting* const lines[] = {&line};
      model_->Extend(lines);
      model_->CheckIntegrity();
    }
    return line.drafts;
  }
  void Append(Sequence& sequence, const std::vector<int32_t>& tokens) {
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  }

  // The model gives its states of the tokens [begin, end).
  void AddStates(const Sequence& sequence, int begin, int end) {
    std::vector<float> states;
    for (int i = begin; i < end; ++i) {
      states.push_back(FakeEngine::Hidden(i, sequence.tokens[static_cast<size_t>(i)], false));
    }
    model_->AddStates(sequence, begin, states);
    model_->CheckIntegrity();
  }

  testing::FakeClock clock_;
  FakeEngine answers_{16};
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<DraftModel> model_;
  uint64_t last_id_ = 0;
  int steps_ = 0;
  int rows_ = 0;
};

TEST_F(DraftModelTest, DraftsWhatTheModelDraws) {
  Make(16);
  const auto sequence = NewSequence(50);
  EXPECT_EQ(model_->Missing(*sequence), 50);
  CatchUp(*sequence, 20);
  EXPECT_EQ(model_->Missing(*sequence), 30);
  CatchUp(*sequence);
  EXPECT_EQ(model_->Missing(*sequence), 1);
  EXPECT_EQ(rows_, 49);
  const std::vector<int32_t> drafts = Draft(*sequence, 5);
  EXPECT_THAT(drafts, ElementsAreArray(FakeEngine::Answer(sequence->tokens, 5)));
  EXPECT_EQ(rows_, 54);
}

TEST_F(DraftModelTest, SaysHowSureItIs) {
  Make(16);
  const auto sequence = NewSequence(3);
  DraftModel::Drafting line = {.sequence = sequence.get()};
  model_->Missing(*sequence);
  DraftModel::Drafting* const lines[] = {&line};
  model_->Extend(lines);
  ASSERT_EQ(line.confidences.size(), 1u);
  EXPECT_FLOAT_EQ(line.confidences[0], std::exp(-static_cast<float>(line.drafts[0]) / 1000));
}

// The engine checks that what it reads is the KV of the tokens before.
TEST_F(DraftModelTest, KeepsWhatWasDrawnOfItsDrafts) {
  Make(16);
  const auto sequence = NewSequence(30);
  CatchUp(*sequence);
  const std::vector<int32_t> drafts = Draft(*sequence, 4);
  // The last draft is not computed. All were drawn, and a token behind them.
  Append(*sequence, FakeEngine::Answer(sequence->tokens, 5));
  EXPECT_EQ(model_->Missing(*sequence), 2);
  Draft(*sequence, 4);
  // The first two were drawn, then another token.
  const std::vector<int32_t> answer = FakeEngine::Answer(sequence->tokens, 2);
  Append(*sequence, {answer[0], answer[1], (answer[1] + 500) % 1000});
  EXPECT_EQ(model_->Missing(*sequence), 1);
  EXPECT_THAT(Draft(*sequence, 3), ElementsAreArray(FakeEngine::Answer(sequence->tokens, 3)));
  // None was drawn, and the sequence went on without drafts.
  Append(*sequence, {1, 2, 3});
  EXPECT_EQ(model_->Missing(*sequence), 3);
  EXPECT_THAT(Draft(*sequence, 3), ElementsAreArray(FakeEngine::Answer(sequence->tokens, 3)));
}

TEST_F(DraftModelTest, SharesPromptsWithinANamespace) {
  Make(32);
  const auto first = NewSequence(50);
  CatchUp(*first);
  const auto choice = NewSequence(50);
  EXPECT_EQ(model_->Missing(*choice), 50 - 48);
  const auto salted = NewSequence(50, "salt");
  EXPECT_EQ(model_->Missing(*salted), 50);
  // The next turn of a chat begins with this one's answer.
  Append(*first, FakeEngine::Answer(first->tokens, 40));
  CatchUp(*first);
  model_->Ended(*first);
  const auto turn = NewSequence(50);
  Append(*turn, FakeEngine::Answer(turn->tokens, 50));
  EXPECT_EQ(model_->Missing(*turn), 100 - 80);
  for (const Sequence* const sequence : {choice.get(), salted.get(), turn.get()}) {
    model_->Ended(*sequence);
  }
  model_->CheckIntegrity();
  EXPECT_EQ(model_->pool().counts().active, 0);
}

TEST_F(DraftModelTest, ALaterSequenceGetsBlocksThatAreNotInUse) {
  Make(4);
  const auto first = NewSequence(40);
  CatchUp(*first);
  EXPECT_EQ(Draft(*first, 2).size(), 2u);
  const auto second = NewSequence(60, "other");
  CatchUp(*second);
  EXPECT_EQ(model_->Missing(*second), 60) << "the first has drafted just now";
  // Where it lacks blocks, a sequence drafts nothing.
  const auto third = NewSequence(5, "third");
  EXPECT_EQ(Draft(*third, 2).size(), 2u);
  const auto fourth = NewSequence(5, "fourth");
  EXPECT_TRUE(Draft(*fourth, 2).empty());
  for (int i = 0; i < 40; ++i) {
    model_->OnStepPlanned();
    Draft(*third, 1);
  }
  CatchUp(*second, 20);
  EXPECT_EQ(model_->Missing(*second), 60) << "it is not begun where it cannot be ended";
  EXPECT_LT(model_->Missing(*first), 8) << "and takes nothing from others in vain";
  const auto fifth = NewSequence(40, "fifth");
  CatchUp(*fifth, 20);
  EXPECT_EQ(model_->Missing(*fifth), 20);
  // What the first has lost is computed again.
  EXPECT_GE(model_->Missing(*first), 8);
  for (const auto& sequence : {&first, &second, &third, &fourth, &fifth}) model_->Ended(**sequence);
  EXPECT_EQ(model_->pool().counts().active, 0);
}

TEST_F(DraftModelTest, EndsWhereItsContextDoes) {
  Make(16);
  engine_->SetMaxModelLen(33);
  const auto sequence = NewSequence(30);
  CatchUp(*sequence);
  EXPECT_EQ(Draft(*sequence, 10).size(), 4u);
  const auto longer = NewSequence(40, "longer");
  CatchUp(*longer);
  EXPECT_EQ(model_->Missing(*longer), 40);
}

// A model's embedding may have fewer rows behind the tokenizer's than that of the model that
// answers, and a request may have the ids of such rows.
TEST_F(DraftModelTest, HoldsSequencesWhoseTokensTheModelKnows) {
  Make(16);
  const auto sequence = NewSequence(10);
  EXPECT_TRUE(model_->Holds(*sequence));
  Append(*sequence, {FakeEngine::kVocabulary - 1});
  EXPECT_TRUE(model_->Holds(*sequence));
  Append(*sequence, {FakeEngine::kVocabulary});
  EXPECT_FALSE(model_->Holds(*sequence));
  Append(*sequence, {1});
  EXPECT_FALSE(model_->Holds(*sequence));
  engine_->SetMaxModelLen(33);
  const auto longer = NewSequence(32, "longer");
  EXPECT_TRUE(model_->Holds(*longer));
  Append(*longer, {1});
  EXPECT_FALSE(model_->Holds(*longer));
}

// The draft model does not begin a prompt that its pool cannot hold.
TEST_F(DraftModelTest, HoldsSequencesForWhichThePoolHasRoom) {
  Make(4);
  const auto fits = NewSequence(63);
  EXPECT_TRUE(model_->Holds(*fits));
  const auto longer = NewSequence(64);
  EXPECT_FALSE(model_->Holds(*longer));
}

// A head has no KV of the prompt.
TEST_F(DraftModelTest, AHeadHoldsPromptsThatAreLongerThanItsPool) {
  Make(2, {.kind = DraftModel::Kind::kMtpHead});
  const auto sequence = NewSequence(200);
  EXPECT_TRUE(model_->Holds(*sequence));
  AddStates(*sequence, 198, 199);
  EXPECT_TRUE(model_->Holds(*sequence));
  for (int i = 0; i < 40; ++i) Append(*sequence, {1});
  EXPECT_FALSE(model_->Holds(*sequence));
}

TEST_F(DraftModelTest, FlushesItsPrefixCache) {
  Make(16);
  const auto first = NewSequence(50);
  CatchUp(*first);
  model_->Ended(*first);
  EXPECT_EQ(model_->pool().counts().cached, 3);
  model_->FlushCache();
  EXPECT_EQ(model_->pool().counts().cached, 0);
  const auto again = NewSequence(50);
  EXPECT_EQ(model_->Missing(*again), 50);
}

TEST_F(DraftModelTest, KeepsNothingWithoutPrefixCaching) {
  Make(16, {.enable_prefix_caching = false});
  const auto first = NewSequence(50);
  CatchUp(*first);
  const auto choice = NewSequence(50);
  EXPECT_EQ(model_->Missing(*choice), 50);
  model_->Ended(*first);
  EXPECT_EQ(model_->pool().counts().free, 16);
}

TEST_F(DraftModelTest, ADrawThatFailsEndsTheLine) {
  Make(16);
  engine_->draw_error = absl::InternalError("no");
  const auto sequence = NewSequence(3);
  EXPECT_TRUE(Draft(*sequence, 3).empty());
}

TEST_F(DraftModelTest, LeastLengthsHoldForDrafts) {
  Make(16);
  const auto sequence = NewSequence(3);
  sequence->call->min_tokens = 2;
  sequence->call->stop_token_ids = {5};
  std::vector<size_t> suppressed;
  engine_->on_step = [&](const engine::Batch& batch) {
    suppressed.push_back(batch.entries[0].history.suppressed.size());
  };
  Draft(*sequence, 3);
  EXPECT_THAT(suppressed, ElementsAre(1, 1, 0));
}

// The engine checks the states that it gets, and that what it reads is the KV of the tokens before.
TEST_F(DraftModelTest, AHeadDraftsFromHiddenStates) {
  Make(16, {.kind = DraftModel::Kind::kMtpHead});
  const auto sequence = NewSequence(20);
  EXPECT_EQ(model_->Missing(*sequence), DraftModel::kNoStates);
  AddStates(*sequence, 17, 19);
  EXPECT_EQ(model_->Missing(*sequence), 2);
  EXPECT_THAT(Draft(*sequence, 3), ElementsAreArray(FakeEngine::Answer(sequence->tokens, 3)));
  EXPECT_EQ(rows_, 2 + 1 + 1);
  // Two drafts were drawn, and a token behind them: the model's states replace the head's own.
  Append(*sequence, FakeEngine::Answer(sequence->tokens, 3));
  EXPECT_EQ(model_->Missing(*sequence), DraftModel::kNoStates);
  AddStates(*sequence, 19, 22);
  EXPECT_EQ(model_->Missing(*sequence), 3);
  EXPECT_THAT(Draft(*sequence, 2), ElementsAreArray(FakeEngine::Answer(sequence->tokens, 2)));
  // None was drawn.
  Append(*sequence, {7});
  AddStates(*sequence, 22, 23);
  EXPECT_EQ(model_->Missing(*sequence), 1);
  EXPECT_THAT(Draft(*sequence, 2), ElementsAreArray(FakeEngine::Answer(sequence->tokens, 2)));
  model_->Ended(*sequence);
  EXPECT_EQ(model_->pool().counts().free, 16);
}

TEST_F(DraftModelTest, AHeadBeginsAgainBehindTokensWithoutStates) {
  Make(16, {.kind = DraftModel::Kind::kMtpHead});
  const auto sequence = NewSequence(20);
  AddStates(*sequence, 18, 19);
  Draft(*sequence, 1);
  Append(*sequence, {1, 2, 3, 4});
  // The model computes the last of them again, as one with a recurrent layer does.
  AddStates(*sequence, 21, 23);
  EXPECT_EQ(model_->Missing(*sequence), 2);
  AddStates(*sequence, 20, 23);
  EXPECT_EQ(model_->Missing(*sequence), 2);
  EXPECT_THAT(Draft(*sequence, 2), ElementsAreArray(FakeEngine::Answer(sequence->tokens, 2)));
}

TEST_F(DraftModelTest, AHeadComputesAPromptsStatesAtOnce) {
  Make(4, {.kind = DraftModel::Kind::kMtpHead});
  const auto sequence = NewSequence(50);
  AddStates(*sequence, 0, 30);
  // The first token has none before it.
  EXPECT_EQ(rows_, 30);
  AddStates(*sequence, 30, 49);
  EXPECT_EQ(model_->Missing(*sequence), 1);
  EXPECT_THAT(Draft(*sequence, 2), ElementsAreArray(FakeEngine::Answer(sequence->tokens, 2)));
  // Where there is no room for all, only the last state is kept.
  const auto longer = NewSequence(200);
  AddStates(*longer, 0, 150);
  EXPECT_EQ(model_->Missing(*longer), DraftModel::kNoStates);
  AddStates(*longer, 150, 160);
  AddStates(*longer, 160, 199);
  EXPECT_EQ(model_->Missing(*longer), 1);
  model_->Ended(*sequence);
  EXPECT_THAT(Draft(*longer, 2), ElementsAreArray(FakeEngine::Answer(longer->tokens, 2)));
}

TEST_F(DraftModelTest, SaysWhyAModelCannotDraft) {
  model::ModelConfig config;
  config.token_count = 100;
  config.tokenizer_fingerprint = 7;
  model::ModelConfig draft = config;
  EXPECT_TRUE(CheckDraftModel(draft, config).ok());
  draft.tokenizer_fingerprint = 99;
  absl::Status status = CheckDraftModel(draft, config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(status), "DRAFT_MODEL");
  EXPECT_THAT(std::string(status.message()), HasSubstr("same tokenizer"));
  draft = config;
  draft.token_count = 101;
  EXPECT_EQ(ErrorReason(CheckDraftModel(draft, config)), "DRAFT_MODEL");
  draft = config;
  draft.layers.emplace_back().sublayers.emplace_back().body = model::RecurrentSpec();
  status = CheckDraftModel(draft, config);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("recurrent"));
}

}  // namespace
}  // namespace baton::decode_worker
