// Scoring calls under a fake clock, over a fake network: the test says what prefill workers say,
// and when.
#ifndef BATON_TESTS_ROUTER_SCORE_SCORE_HARNESS_H_
#define BATON_TESTS_ROUTER_SCORE_SCORE_HARNESS_H_

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/request/item_shares.h"
#include "router/score/score_call.h"
#include "tests/router/call_harness.h"

namespace baton::testing {
class FakeScoreNetwork final : public router::ScoreNetwork {
 public:
  struct Stream final : public router::ScoreHandle {
    int worker = 0;
    internal::v1::ScoreItemsRequest request;
    TraceContext trace;
    std::shared_ptr<router::ScoreListener> listener;
    int number = 0;
    bool cancelled = false;
    void Cancel() override { cancelled = true; }

    // Each label's tokens have this log probability.
    void Score(int item, float logprob = -1) {
      internal::v1::ScoredItem result;
      result.set_item(item);
      if (request.embed()) result.mutable_embedding()->Add(kFakeState.begin(), kFakeState.end());
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
    void Heartbeat() {
      internal::v1::ScoredItem heartbeat;
      heartbeat.set_heartbeat(true);
      listener->OnScored(number, heartbeat);
    }
    void End(const grpc::Status& status) { listener->OnStreamEnd(number, status); }
  };

  router::ScoreHandle* Open(int worker, internal::v1::ScoreItemsRequest request,
                            const TraceContext& trace, absl::Time,
                            std::shared_ptr<router::ScoreListener> listener, int call) override {
    absl::MutexLock lock(&mutex_);
    streams_.push_back(std::make_unique<Stream>());
    Stream* stream = streams_.back().get();
    stream->worker = worker;
    stream->request = std::move(request);
    stream->trace = trace;
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
  void Result(router::ItemResult item) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(end_.has_value());
    items_.push_back(std::move(item.score));
    embeddings_.push_back(std::move(item.embedding));
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
  bool Stalled(absl::Duration) override {
    absl::MutexLock lock(&mutex_);
    return stalled_;
  }
  void Abort(const absl::Status& why) override {
    absl::MutexLock lock(&mutex_);
    abort_ = why;
  }
  // The client stops reading.
  void Stall() {
    absl::MutexLock lock(&mutex_);
    stalled_ = true;
  }
  absl::Status abort() {
    absl::MutexLock lock(&mutex_);
    return abort_;
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
  // Of each item; empty: it was scored.
  std::vector<std::vector<float>> embeddings() {
    absl::MutexLock lock(&mutex_);
    return embeddings_;
  }
  v1::ScoreUsage usage() {
    absl::MutexLock lock(&mutex_);
    return usage_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::ItemScore> items_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<float>> embeddings_ ABSL_GUARDED_BY(mutex_);
  v1::ScoreUsage usage_ ABSL_GUARDED_BY(mutex_);
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status abort_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

class ScoreCallTest : public CallHarness {
 protected:
  ~ScoreCallTest() override {
    for (const auto& call : calls_) call->Cancel();  // a thread may tokenize for it
    calls_.clear();
    score_network_.Clear();
  }

  router::ScoreCall::Settings Settings(int items, std::vector<std::string> labels = {"y", "no"}) {
    router::ScoreCall::Settings settings;
    settings.request.set_prefix("a prefix of 24 bytes: \n\n");
    settings.request.set_request_id("judge");
    for (int i = 0; i < items; ++i) settings.request.add_items(absl::StrCat("item ", i));
    for (std::string& label : labels) settings.request.add_labels(std::move(label));
    return settings;
  }
  router::ScoreCall& Start(int items, std::vector<std::string> labels = {"y", "no"},
                           absl::Duration timeout = absl::InfiniteDuration()) {
    return Start(Settings(items, std::move(labels)), timeout);
  }
  router::ScoreCall& Start(router::ScoreCall::Settings settings,
                           absl::Duration timeout = absl::InfiniteDuration()) {
    if (!fleet_) Begin();
    if (!score_parts_) {
      score_parts_.emplace(parts());
      score_parts_->score_network = &score_network_;
      score_parts_->item_shares = &shares_;
      score_parts_->classes = classes_.get();
    }
    sinks_.push_back(std::make_unique<FakeScoreSink>());
    calls_.push_back(std::make_shared<router::ScoreCall>(*score_parts_, caller_));
    calls_.back()->Start(std::move(settings), clock_.Now() + timeout, sinks_.back().get());
    return *calls_.back();
  }
  FakeScoreNetwork::Stream& batch(size_t i) { return score_network_.stream(i); }
  FakeScoreSink& sink(size_t i = 0) { return *sinks_[i]; }
  // Time passes for the workers, then for the calls.
  void PassForCalls(absl::Duration time) {
    Pass(time);
    for (const auto& call : calls_) call->OnTick();
  }
  std::vector<uint64_t> Ids() {
    std::vector<uint64_t> ids;
    for (const v1::ItemScore& item : sink().items()) ids.push_back(item.id());
    return ids;
  }

  FakeScoreNetwork score_network_;
  router::ItemShares shares_;
  std::unique_ptr<router::RequestClasses> classes_;  // before the first call
  std::optional<router::RouterParts> score_parts_;
  std::vector<std::unique_ptr<FakeScoreSink>> sinks_;
  std::vector<std::shared_ptr<router::ScoreCall>> calls_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_ROUTER_SCORE_SCORE_HARNESS_H_
