// A scoring call over a fake network: the test says what prefill workers say, and when.
#include "router/score/score_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/router/call_harness.h"

namespace baton::testing {
namespace {

class FakeScoreNetwork final : public router::ScoreNetwork {
 public:
  struct Stream final : public router::ScoreHandle {
    int worker = 0;
    internal::v1::ScoreItemsRequest request;
    std::shared_ptr<router::ScoreListener> listener;
    int number = 0;
    bool cancelled = false;
    void Cancel() override { cancelled = true; }

    // Each label's tokens have this log probability.
    void Score(int item, float logprob = -1) {
      internal::v1::ScoredItem result;
      result.set_item(item);
      for (const auto& label : request.items(item).labels()) {
        auto* logprobs = result.add_labels()->mutable_logprobs();
        for (int i = 0; i < label.tokens_size(); ++i) logprobs->Add(logprob);
      }
      listener->OnScored(number, result);
    }
    void ScoreAll() {
      for (int i = 0; i < request.items_size(); ++i) Score(i);
    }
    void Refuse(int item, absl::StatusCode code, const char* reason) {
      internal::v1::ScoredItem result;
      result.set_item(item);
      result.set_code(static_cast<int>(code));
      result.set_reason(reason);
      listener->OnScored(number, result);
    }
    void End(const grpc::Status& status) { listener->OnStreamEnd(number, status); }
  };

  router::ScoreHandle* Open(int worker, internal::v1::ScoreItemsRequest request,
                            const TraceContext&, absl::Time,
                            std::shared_ptr<router::ScoreListener> listener, int call) override {
    absl::MutexLock lock(&mutex_);
    streams_.push_back(std::make_unique<Stream>());
    Stream* stream = streams_.back().get();
    stream->worker = worker;
    stream->request = std::move(request);
    stream->listener = std::move(listener);
    stream->number = call;
    return stream;
  }
  Stream& stream(size_t i) {
    absl::MutexLock lock(&mutex_);
    const auto opened = [this, i] {
      mutex_.AssertReaderHeld();
      return streams_.size() > i;
    };
    BATON_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&opened), kPatience)) << "no stream " << i;
    return *streams_[i];
  }
  size_t count() {
    absl::MutexLock lock(&mutex_);
    return streams_.size();
  }
  void Clear() {
    absl::MutexLock lock(&mutex_);
    streams_.clear();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
};

class FakeScoreSink final : public router::ScoreSink {
 public:
  void Result(v1::ItemScore item) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(end_.has_value());
    items_.push_back(std::move(item));
  }
  void Finish(const v1::ScoreUsage& usage) override {
    absl::MutexLock lock(&mutex_);
    usage_ = usage;
    end_ = absl::OkStatus();
  }
  void Fail(const absl::Status& error) override {
    absl::MutexLock lock(&mutex_);
    end_ = error;
  }
  absl::Status End() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this] {
      mutex_.AssertReaderHeld();
      return end_.has_value();
    };
    BATON_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&ended), kPatience)) << "no end";
    return *end_;
  }
  bool ended() {
    absl::MutexLock lock(&mutex_);
    return end_.has_value();
  }
  std::vector<v1::ItemScore> items() {
    absl::MutexLock lock(&mutex_);
    return items_;
  }
  v1::ScoreUsage usage() {
    absl::MutexLock lock(&mutex_);
    return usage_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::ItemScore> items_ ABSL_GUARDED_BY(mutex_);
  v1::ScoreUsage usage_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

class ScoreCallTest : public CallHarness {
 protected:
  ~ScoreCallTest() override {
    call_.reset();
    score_network_.Clear();
  }

  router::ScoreCall& Start(int items, std::vector<std::string> labels = {"y", "no"},
                           absl::Duration timeout = absl::InfiniteDuration()) {
    if (!fleet_) Begin();
    score_parts_.emplace(parts());
    score_parts_->score_network = &score_network_;
    router::ScoreCall::Settings settings;
    settings.request.set_prefix("a prefix of 24 bytes: \n\n");
    settings.request.set_request_id("judge");
    for (int i = 0; i < items; ++i) settings.request.add_items(absl::StrCat("item ", i));
    for (std::string& label : labels) settings.request.add_labels(std::move(label));
    call_ = std::make_shared<router::ScoreCall>(*score_parts_);
    call_->Start(std::move(settings), clock_.Now() + timeout, &sink_);
    return *call_;
  }
  FakeScoreNetwork::Stream& batch(size_t i) { return score_network_.stream(i); }
  std::vector<uint64_t> Ids() {
    std::vector<uint64_t> ids;
    for (const v1::ItemScore& item : sink_.items()) ids.push_back(item.id());
    return ids;
  }

  FakeScoreNetwork score_network_;
  FakeScoreSink sink_;
  std::optional<router::RouterParts> score_parts_;
  std::shared_ptr<router::ScoreCall> call_;
};

TEST_F(ScoreCallTest, ItemsGoToPrefillWorkersInBatchesAndComeBackInOrder) {
  Start(40);
  EXPECT_EQ(batch(0).request.items_size(), 32);
  EXPECT_EQ(batch(1).request.items_size(), 8);
  const auto& first = batch(0).request;
  EXPECT_LT(batch(0).worker, 2) << "no decode worker";
  EXPECT_EQ(std::string(first.prefix().begin(), first.prefix().end()),
            "a prefix of 24 bytes: \n\n");
  EXPECT_EQ(std::string(first.items(3).tokens().begin(), first.items(3).tokens().end()), "item 3");
  ASSERT_EQ(first.items(0).labels_size(), 2);
  EXPECT_EQ(first.items(0).labels(1).tokens_size(), 2);
  batch(1).ScoreAll();
  EXPECT_TRUE(sink_.items().empty()) << "the first items come first";
  for (int i = 31; i >= 0; --i) batch(0).Score(i);
  EXPECT_EQ(sink_.End(), absl::OkStatus());
  std::vector<uint64_t> all(40);
  for (size_t i = 0; i < 40; ++i) all[i] = i;
  EXPECT_EQ(Ids(), all);
  const v1::ItemScore item = sink_.items()[0];
  EXPECT_EQ(item.labels(0).logprob(), -1);
  EXPECT_EQ(item.labels(1).logprob(), -2);
  EXPECT_DOUBLE_EQ(item.probability(), std::exp(-1.0) / (std::exp(-1.0) + std::exp(-2.0)));
  EXPECT_EQ(item.prompt_tokens(), 30);
  EXPECT_EQ(sink_.usage().items(), 40);
  EXPECT_EQ(sink_.usage().failed_items(), 0);
  EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(ScoreCallTest, ItemsInFlightAreBounded) {
  Start(1000);
  batch(7);  // 128 items for each of two prefill workers
  EXPECT_EQ(score_network_.count(), 8u);
  batch(0).ScoreAll();
  batch(8);
  EXPECT_EQ(score_network_.count(), 9u);
}

TEST_F(ScoreCallTest, WhatALostStreamLeavesGoesElsewhereAndIsAnsweredOnce) {
  Start(10);
  const int lost = batch(0).worker;
  for (const int i : {0, 1, 7}) batch(0).Score(i);
  batch(0).End(kSocketClosed);
  auto& second = batch(1);
  EXPECT_NE(second.worker, lost);
  EXPECT_EQ(second.request.items_size(), 7);
  batch(0).Score(5);  // late
  second.ScoreAll();
  second.Score(0);  // twice
  EXPECT_EQ(sink_.End(), absl::OkStatus());
  EXPECT_EQ(sink_.items().size(), 10u);
  EXPECT_EQ(sink_.usage().items(), 10);
}

TEST_F(ScoreCallTest, AnItemThatIsLostThreeTimesHasTheErrorAndOthersGoOn) {
  Start(2);
  batch(0).Score(1);
  for (size_t i = 0; i < 3; ++i) {
    batch(i).End(kSocketClosed);
    Pass(router::kSameWorkerPause);
    call_->OnTick();
  }
  EXPECT_EQ(sink_.End(), absl::OkStatus());
  ASSERT_EQ(sink_.items().size(), 2u);
  EXPECT_EQ(sink_.items()[0].error().reason(), "WORKER_LOST");
  EXPECT_FALSE(sink_.items()[1].has_error());
  EXPECT_EQ(sink_.usage().failed_items(), 1);
}

TEST_F(ScoreCallTest, ABusyClusterRefusesANewCallAndKeepsOneThatRuns) {
  Start(2);
  for (size_t i = 0; i < 2; ++i) {
    for (const int item : {0, 1}) {
      batch(i).Refuse(item, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
    }
  }
  EXPECT_EQ(ErrorReason(sink_.End()), "QUEUE_FULL");
  EXPECT_TRUE(ErrorRetryAfter(sink_.End()).has_value());
}

TEST_F(ScoreCallTest, ARunningCallWaitsForRoom) {
  Start(2);
  batch(0).Score(0);
  batch(0).Refuse(1, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  for (size_t i = 1; i < 4; ++i) {
    batch(i).Refuse(0, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
    EXPECT_FALSE(sink_.ended());
    Pass(absl::Seconds(1));
    call_->OnTick();
  }
  batch(4).Score(0);
  EXPECT_EQ(sink_.End(), absl::OkStatus());
  EXPECT_EQ(sink_.usage().failed_items(), 0);
}

TEST_F(ScoreCallTest, AResultThatMakesNoSenseIsTheItemsError) {
  Start(3);
  batch(0).Score(0, std::nanf(""));
  batch(0).Score(1, 0.5f);
  internal::v1::ScoredItem nothing;
  nothing.set_item(2);
  batch(0).listener->OnScored(batch(0).number, nothing);
  nothing.set_item(-1);
  batch(0).listener->OnScored(batch(0).number, nothing);
  EXPECT_EQ(sink_.End(), absl::OkStatus());
  ASSERT_EQ(sink_.items().size(), 3u);
  for (const v1::ItemScore& item : sink_.items()) {
    EXPECT_EQ(item.error().reason(), "WORKER_FAILED") << item.ShortDebugString();
  }
}

TEST_F(ScoreCallTest, WithoutPrefillWorkersItIsRefused) {
  Begin();
  LoseWatch(0);
  LoseWatch(1);
  clock_.Advance(absl::Seconds(10));
  for (int worker = 2; worker < kWorkers; ++worker) Report(worker);
  fleet_->roster.Tick();
  Start(2);
  EXPECT_EQ(ErrorReason(sink_.End()), "NO_PREFILL_WORKER") << sink_.End();
  EXPECT_EQ(score_network_.count(), 0u);
}

TEST_F(ScoreCallTest, CancelsAndDeadlinesEndTheStreams) {
  router::ScoreCall& call = Start(2, {"y"}, absl::Seconds(60));
  batch(0);
  EXPECT_EQ(registry_.Cancel("", "judge"), 1);
  EXPECT_EQ(ErrorReason(sink_.End()), "CANCELLED_BY_ID");
  EXPECT_TRUE(batch(0).cancelled);
  call.Cancel();  // nothing more happens
}

TEST_F(ScoreCallTest, ItEndsAtItsDeadline) {
  Start(2, {"y"}, absl::Seconds(60));
  batch(0).Score(0);
  Pass(absl::Seconds(61));
  call_->OnTick();
  EXPECT_TRUE(absl::IsDeadlineExceeded(sink_.End()));
  EXPECT_TRUE(batch(0).cancelled);
}

}  // namespace
}  // namespace baton::testing
