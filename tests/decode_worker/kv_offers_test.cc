// What the decode loop offers of its answers, and what it sends of its cache.
#include <memory>
#include <vector>

#include "common/base/error.h"
#include "tests/decode_worker/loop_harness.h"

namespace baton::decode_worker {
namespace {

using internal::v1::OfferKvResponse;

class FakeOffer final : public transfer::OfferCall {
 public:
  void Cancel() override { cancelled = true; }
  std::string address;
  internal::v1::OfferKvRequest request;
  OnAnswer answer;
  bool cancelled = false;
};

class KvOffersTest : public LoopTest {
 protected:
  void MakeOffering() {
    LoopOptions options = ByHand();
    options.scheduler.max_num_seqs = 8;
    options.kv_offers.start = [this](const std::string& address,
                                     const internal::v1::OfferKvRequest& request,
                                     absl::Time deadline, transfer::OfferCall::OnAnswer answer) {
      EXPECT_EQ(deadline, clock_.Now() + KvOffers::kAnswerTime);
      auto call = std::make_shared<FakeOffer>();
      call->address = address;
      call->request = request;
      call->answer = std::move(answer);
      offers_.push_back(call);
      return call;
    };
    Make(64, options);
  }
  void SetSelf() {
    internal::v1::WorkerRef self;
    self.set_address("d:1");
    loop_->OfferFrom(self);
    Turn();
  }
  // One answer whose prompt a prefill worker has computed.
  void Answer(int prompt, int tokens, int n = 0, int first = 1) {
    const auto stream =
        Ask({.prompt = Prompt(prompt, first), .max_tokens = tokens, .remote = true, .n = n});
    Turn();
    Commit(*transfers_.back());
    Run();
    EXPECT_EQ(stream->finish, absl::OkStatus());
  }
  double Offers(const char* result) { return Metric("baton_kv_offers_total", result); }

  std::vector<std::shared_ptr<FakeOffer>> offers_;
};

TEST_P(KvOffersTest, WholeBlocksOfAnAnswerAreOfferedOnce) {
  MakeOffering();
  Answer(40, 30);
  EXPECT_TRUE(offers_.empty()) << "the worker does not serve yet";
  SetSelf();
  Answer(40, 5, 0, 100);
  EXPECT_TRUE(offers_.empty()) << "no block was filled";
  Answer(40, 30, 2, 200);
  EXPECT_TRUE(offers_.empty()) << "several choices";
  Answer(40, 30, 0, 300);
  ASSERT_EQ(offers_.size(), 1u);
  EXPECT_EQ(offers_[0]->address, "p:1");
  EXPECT_EQ(offers_[0]->request.holder().address(), "d:1");
  // The last token has no KV: 69 tokens have.
  std::vector<int32_t> tokens = Prompt(40, 300);
  for (const int32_t token : testing::FakeEngine::Answer(tokens, 24)) tokens.push_back(token);
  EXPECT_EQ(std::vector<int32_t>(offers_[0]->request.tokens().begin(),
                                 offers_[0]->request.tokens().end()),
            tokens);
  offers_[0]->answer(OfferKvResponse::RESULT_TAKEN);
  Turn();
  EXPECT_EQ(Offers("taken"), 1);
}

TEST_P(KvOffersTest, UnansweredOffersAreBounded) {
  MakeOffering();
  SetSelf();
  for (int i = 0; i < 6; ++i) Answer(40, 30, 0, 100 * i + 1);
  EXPECT_EQ(offers_.size(), 4u);
  EXPECT_EQ(Offers("dropped"), 2);
  offers_[0]->answer(OfferKvResponse::RESULT_BUSY);
  offers_[1]->answer(MakeError(absl::StatusCode::kFailedPrecondition, "KV_FETCH_OFF", "off"));
  offers_[2]->answer(absl::UnavailableError("gone"));
  offers_[3]->answer(OfferKvResponse::RESULT_CACHED);
  Turn();
  EXPECT_EQ(Offers("busy"), 1);
  EXPECT_EQ(Offers("refused"), 1);
  EXPECT_EQ(Offers("failed"), 1);
  EXPECT_EQ(Offers("cached"), 1);
  Answer(40, 30, 0, 900);
  EXPECT_EQ(offers_.size(), 5u);
  offers_[4]->answer(OfferKvResponse::RESULT_TAKEN);
  Turn();
}

INSTANTIATE_TEST_SUITE_P(Engines, KvOffersTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "ThatRunAhead" : "ThatDoNot";
});

}  // namespace
}  // namespace baton::decode_worker
