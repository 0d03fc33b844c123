// A decode loop turned by its test: the engine computes nothing, time stands still until told, and
// transfers are what the test says.
#ifndef BATON_TESTS_DECODE_WORKER_LOOP_HARNESS_H_
#define BATON_TESTS_DECODE_WORKER_LOOP_HARNESS_H_

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "decode_worker/loop.h"
#include "decode_worker/request.h"
#include "tests/decode_worker/fake_engine.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/registry_values.h"

namespace baton::decode_worker {

// What a router sees of one Decode call.
class FakeStream final : public DecodeStream {
 public:
  void Push(internal::v1::DecodeResponse response) override {
    EXPECT_FALSE(finish.has_value()) << "a message behind the end";
    std::vector<int32_t>& of_choice = tokens[response.choice()];
    of_choice.insert(of_choice.end(), response.token_ids().begin(), response.token_ids().end());
    messages.push_back(std::move(response));
    on_change(*this);
  }
  void Finish(const absl::Status& status) override {
    EXPECT_FALSE(finish.has_value()) << "a second end";
    finish = status;
    on_change(*this);
  }

  std::function<void(const FakeStream&)> on_change = [](const FakeStream&) {};
  std::vector<internal::v1::DecodeResponse> messages;
  std::map<int, std::vector<int32_t>> tokens;  // by choice
  std::optional<absl::Status> finish;
};

// A Prefill call under way, which the test ends.
class FakePrefillCall final : public transfer::PrefillCall {
 public:
  void Cancel() override {
    if (!cancelled.exchange(true)) on_cancel();
  }

  internal::v1::PrefillRequest request;
  transfer::TransferPlan plan;
  transfer::PrefillEvents events;
  std::function<void()> on_cancel = [] {};
  std::atomic<bool> cancelled{false};
};

struct LoopWish {
  std::vector<int32_t> prompt;
  int max_tokens = 1;
  bool remote = false;  // prefilled by another worker
  int n = 0;
  int beam_width = 0;
  bool logprobs = false;
  std::vector<int32_t> stop_token_ids = {};
  absl::Duration within = absl::InfiniteDuration();
  bool continuation = false;  // of what a lost worker had
  bool no_speculation = false;
  bool prompt_logprobs = false;
  int min_tokens = 0;
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;
  std::string tenant = "";
  std::string cache_salt = "";
};

inline std::vector<int32_t> Prompt(int length, int first = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((first + i) % 1000);
  return tokens;
}

// The parameter: whether the engine runs ahead.
class LoopTest : public ::testing::TestWithParam<bool> {
 protected:
  void Make(int blocks, LoopOptions options = {}, bool recurrent = false) {
    loop_.reset();
    engine_ =
        std::make_unique<testing::FakeEngine>(blocks, options.scheduler.max_num_seqs,
                                              options.scheduler.max_num_batched_tokens, recurrent);
    engine_->ahead = GetParam();
    loop_ = std::make_unique<DecodeLoop>(
        options, *engine_, journal_, clock_, metrics_,
        [this](const PrefillPeer& peer, const internal::v1::PrefillRequest& request,
               absl::Time deadline, transfer::TransferPlan plan, transfer::PrefillEvents events) {
          auto call = std::make_shared<FakePrefillCall>();
          call->request = request;
          call->plan = std::move(plan);
          call->events = std::move(events);
          transfers_.push_back(call);
          on_transfer_(call);
          return call;
        },
        [this](const worker::WorkerLoad& load) { load_ = load; });
  }
  // Turned by hand, not by a thread.
  static LoopOptions ByHand() {
    LoopOptions options;
    options.own_thread = false;
    options.scheduler.max_num_seqs = 4;
    return options;
  }

  // Ids count from 1 on.
  std::shared_ptr<FakeStream> Ask(
      const LoopWish& wish,
      std::function<void(const FakeStream&)> on_change = [](const FakeStream&) {}) {
    internal::v1::DecodeRequest request;
    request.set_request_id("test");
    request.mutable_tokens()->Add(wish.prompt.begin(), wish.prompt.end());
    request.mutable_sampling()->set_top_p(1);
    request.set_max_tokens(wish.max_tokens);
    request.set_n(wish.n);
    if (wish.beam_width > 0) {
      request.set_beam_width(wish.beam_width);
      request.set_length_penalty(1);
    }
    if (wish.logprobs) request.mutable_sampling()->set_logprobs(0);
    request.mutable_stop_token_ids()->Add(wish.stop_token_ids.begin(), wish.stop_token_ids.end());
    request.set_continuation(wish.continuation);
    request.set_no_speculation(wish.no_speculation);
    if (wish.prompt_logprobs) request.set_prompt_logprobs(0);
    request.set_min_tokens(wish.min_tokens);
    request.set_priority(wish.priority);
    request.set_tenant(wish.tenant);
    request.set_cache_salt(wish.cache_salt);
    if (wish.remote) {
      request.mutable_prefill()->set_address("p:1");
      request.mutable_prefill()->set_worker_id("p");
      request.mutable_prefill()->set_epoch(5);
    }
    auto sequence = MakeSequence(request, clock_.Now() + wish.within, *engine_);
    auto stream = std::make_shared<FakeStream>();
    stream->on_change = std::move(on_change);
    sequence->call->id = ++last_id_;
    sequence->call->stream = stream;
    sequence->call->trace_context = trace_context_;
    sequence->call->trace = trace_;
    loop_->Submit(std::move(sequence));
    return stream;
  }
  void Turn() {
    loop_->Turn(absl::ZeroDuration());
    if (loop_ != nullptr) loop_->CheckIntegrity();
  }
  // As long as there is something to compute.
  void Run() {
    for (bool stepped = true; stepped;) {
      stepped = loop_->Turn(absl::ZeroDuration());
      loop_->CheckIntegrity();
    }
  }
  // Asks for answers of any kind while others are computed, and expects each to be right.
  void ExpectRightAnswers(std::mt19937_64& random) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    std::vector<std::pair<LoopWish, std::shared_ptr<FakeStream>>> asked;
    for (int i = 0; i < 40; ++i) {
      LoopWish wish;
      wish.prompt = Prompt(1 + below(3) * 16 + below(2), 1 + below(2) * 100);
      wish.max_tokens = 1 + below(60);
      wish.n = below(6) == 0 ? 2 : 0;
      wish.logprobs = below(4) == 0;
      wish.prompt_logprobs = below(4) == 0;
      asked.emplace_back(wish, Ask(wish));
      for (int turns = below(12); turns > 0; --turns) Turn();
    }
    Run();
    for (const auto& [wish, stream] : asked) {
      ASSERT_EQ(stream->finish, absl::OkStatus());
      for (int choice = 0; choice < std::max(1, wish.n); ++choice) {
        ASSERT_EQ(stream->tokens[choice],
                  testing::FakeEngine::Answer(wish.prompt, wish.max_tokens,
                                              static_cast<uint32_t>(choice)));
      }
    }
    EXPECT_EQ(load_.counts.active, 0);
  }
  void SendFirstToken(FakePrefillCall& call, int cached_prompt_tokens = 0) {
    const std::vector<int32_t> tokens(call.request.tokens().begin(), call.request.tokens().end());
    transfer::FirstToken token;
    token.token_id = testing::FakeEngine::Next(tokens, call.request.sampling().choice());
    token.cached_prompt_tokens = cached_prompt_tokens;
    call.events.on_first_token(token);
  }
  // All of its KV, the commit with these times, and the end of its stream.
  void SendKv(FakePrefillCall& call, transfer::TransferSummary summary = {}, bool closed = true) {
    const std::vector<int32_t> tokens(call.request.tokens().begin(), call.request.tokens().end());
    const int first = call.plan.first_block * testing::FakeEngine::kBlockTokens;
    for (size_t i = static_cast<size_t>(first); i < tokens.size(); ++i) {
      engine_->WriteKv(call.plan.blocks, static_cast<int>(i) - first, tokens[i]);
    }
    summary.kv_bytes =
        static_cast<int64_t>(call.plan.blocks.size()) * engine_->kv_layout().BlockBytes();
    call.events.on_end(absl::OkStatus(), summary);
    if (closed) call.events.on_closed();
  }
  void Commit(FakePrefillCall& call, bool closed = true, int cached_prompt_tokens = 0) {
    SendFirstToken(call, cached_prompt_tokens);
    SendKv(call, {}, closed);
  }
  void Fail(FakePrefillCall& call, const absl::Status& status) {
    call.events.on_end(status, {});
    call.events.on_closed();
  }

  double Metric(const std::string& name, const std::string& label_value = "") {
    return testing::MetricValue(registry_, name, label_value);
  }

  testing::FakeClock clock_;
  worker::CacheJournal journal_;
  prometheus::Registry registry_;
  DecodeMetrics metrics_{registry_, "model"};
  std::unique_ptr<testing::FakeEngine> engine_;
  worker::WorkerLoad load_;
  std::vector<std::shared_ptr<FakePrefillCall>> transfers_;
  std::function<void(const std::shared_ptr<FakePrefillCall>&)> on_transfer_ = [](const auto&) {};
  // Of the calls to come.
  TraceContext trace_context_;
  std::shared_ptr<CallTrace> trace_;
  uint64_t last_id_ = 0;
  std::unique_ptr<DecodeLoop> loop_;  // goes first
};

}  // namespace baton::decode_worker

#endif  // BATON_TESTS_DECODE_WORKER_LOOP_HARNESS_H_
