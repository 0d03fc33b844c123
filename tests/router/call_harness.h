// One GenerateCall under a fake clock, over a fake network: the test says what workers say, and
// when.
#ifndef BATON_TESTS_ROUTER_CALL_HARNESS_H_
#define BATON_TESTS_ROUTER_CALL_HARNESS_H_

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "common/chat/model_chat.h"
#include "router/options.h"
#include "router/request/generate_call.h"
#include "router/request/prompt_history.h"
#include "router/request/retry_budget.h"
#include "router/request/unread_answers.h"
#include "router/request/work_pool.h"
#include "router/routing/decision_log.h"
#include "router/routing/routed_fleet.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::testing {

inline const grpc::Status kSocketClosed(grpc::StatusCode::UNAVAILABLE, "socket closed");

class FakeNetwork final : public router::DecodeNetwork {
 public:
  struct Stream final : public router::DecodeHandle {
    int worker = 0;
    internal::v1::DecodeRequest request;
    TraceContext trace;
    std::shared_ptr<router::DecodeListener> listener;
    int number = 0;
    bool cancelled = false;
    void Cancel() override { cancelled = true; }

    // What the worker says: delivered even if the router has cancelled, as the network may.
    void Say(const internal::v1::DecodeResponse& response) {
      listener->OnDecoded(number, response);
    }
    void SayTokens(const std::string& text, int choice = 0) {
      internal::v1::DecodeResponse response;
      for (int32_t id : Ids(text)) response.add_token_ids(id);
      response.set_choice(choice);
      Say(response);
    }
    void Finish(
        const std::string& text, int choice = 0,
        internal::v1::DecodeResponse::Finish finish = internal::v1::DecodeResponse::FINISH_LENGTH) {
      internal::v1::DecodeResponse response;
      for (int32_t id : Ids(text)) response.add_token_ids(id);
      response.set_choice(choice);
      response.set_finish(finish);
      Say(response);
    }
    void End(const grpc::Status& status) { listener->OnStreamEnd(number, status); }
    void End(absl::StatusCode code, const char* reason) {
      End(ToGrpcStatus(MakeError(code, reason, "said the worker")));
    }
    std::string Tokens() const {
      return std::string(request.tokens().begin(), request.tokens().end());
    }
  };

  router::DecodeHandle* Open(int worker, internal::v1::DecodeRequest request,
                             const TraceContext& trace, absl::Time deadline,
                             std::shared_ptr<router::DecodeListener> listener, int call) override {
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
  // The i-th ever opened.
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
  // Lets go of the call: streams hold it as those of gRPC do.
  void Clear() {
    absl::MutexLock lock(&mutex_);
    streams_.clear();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
};

// Merges all that a client gets, by choice.
class FakeSink final : public router::ResponseSink {
 public:
  void Send(const v1::GenerateResponse& delta) override {
    absl::MutexLock lock(&mutex_);
    router::MergeDelta(delta, &choices_[delta.choice()]);
    ++messages_;
  }
  void Heartbeat(const v1::GenerateResponse& empty) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(empty.text().empty());
    EXPECT_EQ(empty.token_ids_size(), 0);
    EXPECT_EQ(empty.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
    EXPECT_FALSE(end_.has_value());
    EXPECT_GT(messages_, 0) << "nothing comes before the first token";
    ++heartbeats_;
  }
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override {
    Send(last);
    absl::MutexLock lock(&mutex_);
    token_counts_.assign(token_counts.begin(), token_counts.end());
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
  bool aborted() {
    absl::MutexLock lock(&mutex_);
    return !abort_.ok();
  }
  absl::Status abort() {
    absl::MutexLock lock(&mutex_);
    return abort_;
  }
  v1::GenerateResponse choice(int i = 0) {
    absl::MutexLock lock(&mutex_);
    return choices_[i];
  }
  int messages() {
    absl::MutexLock lock(&mutex_);
    return messages_;
  }
  int heartbeats() {
    absl::MutexLock lock(&mutex_);
    return heartbeats_;
  }
  std::vector<int> token_counts() {
    absl::MutexLock lock(&mutex_);
    return token_counts_;
  }
  bool ended() {
    absl::MutexLock lock(&mutex_);
    return end_.has_value();
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

 private:
  absl::Mutex mutex_;
  std::map<int, v1::GenerateResponse> choices_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> token_counts_ ABSL_GUARDED_BY(mutex_);
  int messages_ ABSL_GUARDED_BY(mutex_) = 0;
  int heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status abort_ ABSL_GUARDED_BY(mutex_);
};

// Workers 0 and 1 prefill, 2 to 4 decode; all ready.
class CallHarness : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 5;

  CallHarness() : tokenizer_(MakeTokenizer()) { options_.served_model_name = "tiny"; }
  ~CallHarness() override {
    LetGo();
    admission_->AwaitEmpty();
  }

  // Before the first request.
  router::Options options_;
  int max_model_len_ = 128;
  // On cards.
  std::vector<v1::WorkerCapability> decode_capabilities_;
  bool takes_fixed_tokens_[kWorkers] = {};  // of workers introduced from now on
  chat::ModelChat chat_;  // without a template
  router::RetryBudget::Limits budget_limits_;
  tracing::Tracer* tracer_ = nullptr;
  router::Caller caller_;

  void Begin() {
    fleet_.emplace(std::vector<std::string>{"p0:1", "p1:1"},
                   std::vector<std::string>{"d0:1", "d1:1", "d2:1"}, tokenizer_->fingerprint(),
                   policy_, awake_);
    admission_.emplace(router::Admission::Limits{options_.max_inflight_requests,
                                                 options_.max_inflight_prompt_tokens,
                                                 absl::Milliseconds(options_.retry_after_ms)},
                       awake_, [](const router::Admission::Inside&) {});
    budget_.emplace(budget_limits_);
    fleet_->roster.SetOnDeath(
        [this](const router::Incarnation& dead) { budget_->OnDeath(dead, awake_.SinceStart()); });
    parts_.reset(new router::RouterParts{
        options_,  *tokenizer_, clock_,     awake_,         fleet_->roster, fleet_->planner,
        metrics_,  *admission_, *budget_,   continuations_, pool_,          watch_,
        unread_,   network_,    decisions_, access_,        tenants_,       chat_,
        registry_, prompts_,    tracer_});
    for (int worker = 0; worker < kWorkers; ++worker) Introduce(worker);
  }
  router::RouterParts& parts() { return *parts_; }
  void Introduce(int worker) {
    internal::v1::WatchResponse event;
    const auto role = worker < 2 ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE;
    *event.mutable_card() = FakeCard(role, tokenizer_->fingerprint());
    event.mutable_card()->set_max_model_len(max_model_len_);
    event.mutable_card()->set_takes_fixed_tokens(takes_fixed_tokens_[worker]);
    if (role == v1::WORKER_ROLE_DECODE) {
      for (const auto capability : decode_capabilities_) {
        event.mutable_card()->add_capabilities(capability);
      }
    }
    cards_[worker] = event.card();
    fleet_->roster.OnStreamStarted(worker);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
    event.mutable_snapshot()->set_last(true);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
    Report(worker);
  }
  void Report(int worker) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(64);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
  }
  void LoseWatch(int worker) {
    fleet_->roster.OnStreamLost(worker, absl::UnavailableError("gone"));
  }

  v1::GenerateRequest Request(int n = 1) {
    v1::GenerateRequest request;
    request.set_text("prompt:");
    request.set_n(n);
    request.set_return_token_ids(true);
    return request;
  }
  // Sends it; its first stream is the next of the network, unless it fails.
  FakeSink& Start(const v1::GenerateRequest& request,
                  absl::Duration timeout = absl::InfiniteDuration()) {
    if (!fleet_) Begin();
    sinks_.push_back(std::make_unique<FakeSink>());
    calls_.push_back(std::make_shared<router::GenerateCall>(*parts_, caller_));
    calls_.back()->Start(request, clock_.Now() + timeout, sinks_.back().get());
    return *sinks_.back();
  }
  // The calls' clients let go of them, then the workers' streams.
  void LetGo() {
    calls_.clear();
    network_.Clear();
  }
  FakeNetwork::Stream& stream(size_t i) { return network_.stream(i); }
  router::GenerateCall& call() { return *calls_.back(); }
  router::GenerateCall& first_call() { return *calls_.front(); }
  void Tick() {
    for (const auto& call : calls_) call->OnTick();
  }
  // Time passes for the machine and the router's process, and workers report.
  void Pass(absl::Duration time) {
    RunFor(time, clock_, awake_);
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (reporting_[worker]) Report(worker);
    }
    fleet_->roster.Tick();
    Tick();
  }

  FakeClock clock_;
  AwakeClock awake_{clock_, /*own_thread=*/false};  // the router's
  internal::v1::WorkerCard cards_[kWorkers];        // cards of the last processes
  bool reporting_[kWorkers] = {true, true, true, true, true};
  FakeNetwork network_;
  std::optional<router::RoutedFleet> fleet_;
  std::optional<router::RetryBudget> budget_;
  std::optional<router::Admission> admission_;
  router::CallRegistry registry_;
  router::ContinuationLine continuations_{[](int) {}};

 private:
  static std::unique_ptr<tokenizer::Tokenizer> MakeTokenizer() {
    const std::string dir = ::testing::TempDir() + "/tiny";
    WriteTinyTokenizer(dir);
    return *tokenizer::Tokenizer::Load(dir);
  }

  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  router::PrefixThenLoad policy_;
  router::RouterMetrics metrics_{nullptr, "tiny"};
  router::DecisionLog decisions_{0, metrics_};
  const router::Access access_;
  router::PromptHistory prompts_{1 << 20};
  router::TenantLimits tenants_{clock_};
  router::UnreadAnswers unread_{1 << 20, [](int64_t) {}, [] {}};
  router::CallWatch watch_{absl::InfiniteDuration()};  // the test ticks
  std::unique_ptr<router::RouterParts> parts_;
  std::vector<std::unique_ptr<FakeSink>> sinks_;
  std::vector<std::shared_ptr<router::GenerateCall>> calls_;
  router::WorkPool pool_{1, 16};  // its thread goes first
};

}  // namespace baton::testing

#endif  // BATON_TESTS_ROUTER_CALL_HARNESS_H_
