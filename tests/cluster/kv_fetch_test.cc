// Cached KV that workers fetch from each other, over real gRPC: one answer, no leaks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/base/random_id.h"
#include "common/base/rpc/server.h"
#include "common/base/rpc/server_stream.h"
#include "common/transfer/checksum.h"
#include "common/transfer/prefill_call.h"
#include "common/worker/raw_request.h"
#include "tests/cluster/worker_pair.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

worker::WorkerOptions Fetching() {
  worker::WorkerOptions options = Options();
  options.kv_fetch = true;
  return options;
}

// A pair, and another prefill worker that fetches.
class KvFetchTest : public WorkerPairTest {
 protected:
  void StartThree(const worker::WorkerOptions& options = Fetching(),
                  const decode_worker::DecodeOptions& decode_only = NothingLocal()) {
    StartPair(options, options, decode_only);
    auto second = prefill_worker::PrefillWorker::Start(options);
    ASSERT_TRUE(second.ok()) << second.status();
    second_ = *std::move(second);
  }
  static internal::v1::WorkerRef Ref(const worker::Worker& worker) {
    internal::v1::WorkerRef ref;
    ref.set_address(worker.address());
    ref.set_worker_id(worker.card().worker_id());
    ref.set_epoch(worker.card().epoch());
    return ref;
  }
  // The decode worker's own cache would hide what the prefill workers have.
  void FlushDecode() {
    auto stub = internal::v1::WorkerService::NewStub(channel_);
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    internal::v1::FlushCacheRequest request;
    request.set_epoch(decode_->card().epoch());
    internal::v1::FlushCacheResponse response;
    ASSERT_TRUE(stub->FlushCache(&context, request, &response).ok());
  }
  // The second worker computes it, with the hint that `holder` has `tokens` tokens.
  DecodeRequest Hinted(const std::vector<int32_t>& prompt, const internal::v1::WorkerRef& holder,
                       int tokens, int max_tokens = 8) {
    DecodeRequest request = Request(prompt, Greedy(), max_tokens);
    *request.mutable_prefill() = Ref(*second_);
    *request.mutable_kv_holder() = holder;
    request.set_kv_holder_tokens(tokens);
    return request;
  }
  static double Metric(const worker::Worker& worker, const std::string& name,
                       const std::string& label = "") {
    return testing::MetricSum(worker.metrics_address(), name, label);
  }
  // Reads the worker's reports until so many of its blocks are cached.
  static bool AwaitCachedBlocks(const worker::Worker& worker, int blocks) {
    auto stub = internal::v1::WorkerService::NewStub(MakeChannel(worker.address()));
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    internal::v1::WatchRequest watch;
    watch.set_watcher("test");
    auto reader = stub->Watch(&context, watch);
    internal::v1::WatchResponse response;
    while (reader->Read(&response)) {
      if (response.has_load() && response.load().cached_blocks() >= blocks) {
        context.TryCancel();
        return true;
      }
    }
    return false;
  }
  void ExpectAllIdle() {
    ExpectIdle();
    EXPECT_TRUE(WaitUntilIdle(second_->address()).ok()) << WaitUntilIdle(second_->address());
    const auto counts = BlockCounts(second_->address());
    EXPECT_EQ(counts.free() + counts.cached(), counts.total());
  }

  // A fetch from the first prefill worker, as the test says; its end, and what has come.
  struct Fetched {
    absl::Status status;
    transfer::TransferSummary summary;
    std::vector<std::byte> blocks;
  };
  Fetched Fetch(const std::vector<int32_t>& tokens,
                const std::function<void(internal::v1::FetchKvRequest&)>& change,
                absl::Duration within = absl::Seconds(10), bool cancel = false) {
    const kv::KvLayout& layout = TheOracle().engine().kv_layout();
    internal::v1::FetchKvRequest request;
    request.set_request_id("test");
    request.set_transfer_id(RandomId64());
    request.set_model_fingerprint(prefill_->card().model_fingerprint());
    request.set_kv_layout_fingerprint(layout.Fingerprint());
    request.set_holder_epoch(prefill_->card().epoch());
    request.set_worker_id("the test");
    request.mutable_tokens()->Add(tokens.begin(), tokens.end());
    request.set_checksum(transfer::RequestChecksum(request));
    change(request);
    Fetched fetched;
    transfer::TransferPlan plan;
    plan.transfer_id = request.transfer_id();
    plan.sender_epoch = prefill_->card().epoch();
    plan.layout = layout;
    plan.first_block = request.first_block();
    for (int i = plan.first_block; i < static_cast<int>(tokens.size()) / 16; ++i) {
      plan.blocks.push_back(i);
    }
    fetched.blocks.resize(tokens.size() / 16 * static_cast<size_t>(layout.BlockBytes()));
    plan.pool.base = fetched.blocks.data();
    plan.pool.block_stride_bytes = layout.BlockBytes();
    plan.pool.layer_stride_bytes = layout.ChunkBytes();
    plan.pool.block_count = static_cast<int>(tokens.size()) / 16;
    plan.fetch = true;
    absl::Notification closed;
    transfer::PrefillEvents events;
    events.on_end = [&](absl::Status status, const transfer::TransferSummary& summary) {
      fetched.status = std::move(status);
      fetched.summary = summary;
    };
    events.on_closed = [&] { closed.Notify(); };
    const auto call =
        transfer::PrefillCall::StartFetch(MakeChannel(prefill_->address(), kTransferChannel),
                                          request, absl::Now() + within, plan, events);
    if (cancel) call->Cancel();
    closed.WaitForNotification();
    return fetched;
  }
  static void Reseal(internal::v1::FetchKvRequest& request) {
    request.set_checksum(transfer::RequestChecksum(request));
  }

  std::unique_ptr<prefill_worker::PrefillWorker> second_;
};

TEST_F(KvFetchTest, ASecondPrefillWorkerFetchesWhatTheFirstHasAndAnswersAlike) {
  StartThree();
  std::mt19937 random(testing::TestSeed(31));
  for (int i = 0; i < 10; ++i) {
    const std::vector<int32_t> prompt =
        RandomTokens(random, 120 + static_cast<int>(random() % 200));
    const std::vector<int32_t> expected = TheOracle().Generate(prompt, Greedy(), 8);
    ASSERT_EQ(Decode(channel_, Request(prompt, Greedy(), 8)).tokens, expected);
    FlushDecode();
    const int whole = (static_cast<int>(prompt.size()) - 1) / 16 * 16;
    const DecodeResult result = Decode(channel_, Hinted(prompt, Ref(*prefill_), whole));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, expected);
    // The price may have decided for computing; the answer is the same.
    const int cached = result.usage.cached_prompt_tokens();
    EXPECT_TRUE(cached == whole || cached == 0) << cached;
    if (i == 0) {
      EXPECT_EQ(cached, whole) << "a worker that knows no price trusts the hint";
    }
    FlushDecode();
  }
  const std::string fetched = R"(result="fetched")";
  EXPECT_GE(Metric(*second_, "baton_kv_fetches_total", fetched), 1);
  EXPECT_EQ(Metric(*second_, "baton_kv_fetches_total", fetched),
            Metric(*prefill_, "baton_kv_fetches_total", fetched));
  EXPECT_GT(Metric(*second_, "baton_kv_fetch_bytes_total"), 0);
  EXPECT_EQ(Metric(*second_, "baton_kv_fetch_bytes_total"),
            Metric(*prefill_, "baton_kv_fetch_bytes_total"));
  ExpectAllIdle();
}

TEST_F(KvFetchTest, APrefillWorkerFetchesWhatTheDecodeWorkerHas) {
  StartThree();
  std::mt19937 random(testing::TestSeed(40));
  std::vector<int32_t> prompt = RandomTokens(random, 160);
  // An answer of one token may end before its KV has come.
  ASSERT_TRUE(Decode(channel_, Request(prompt, Greedy(), 4)).status.ok());
  for (const int32_t token : RandomTokens(random, 50)) prompt.push_back(token);
  const DecodeResult result = Decode(channel_, Hinted(prompt, Ref(*decode_), 160));
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 8));
  EXPECT_EQ(result.usage.cached_prompt_tokens(), 160);
  EXPECT_EQ(Metric(*decode_, "baton_kv_fetches_total", R"(result="fetched")"), 1);
  ExpectAllIdle();
}

TEST_F(KvFetchTest, AWrongHintCostsNoAnswer) {
  StartThree();
  std::mt19937 random(testing::TestSeed(32));
  const auto other = [](internal::v1::WorkerRef ref, auto change) {
    change(ref);
    return ref;
  };
  struct Case {
    std::string what;
    internal::v1::WorkerRef holder;
  };
  const std::vector<Case> cases = {
      {"another epoch", other(Ref(*prefill_), [](auto& ref) { ref.set_epoch(1); })},
      {"nothing cached", Ref(*prefill_)},
      {"no worker there", other(Ref(*prefill_),
                                [](auto& ref) {
                                  ref.set_address("127.0.0.1:1");
                                  ref.set_worker_id("gone");
                                })},
      {"itself", Ref(*second_)},
      {"the decode worker, which has evicted it", Ref(*decode_)},
  };
  for (const Case& c : cases) {
    const std::vector<int32_t> prompt = RandomTokens(random, 150);
    const std::vector<int32_t> expected = TheOracle().Generate(prompt, Greedy(), 8);
    const DecodeResult result = Decode(channel_, Hinted(prompt, c.holder, 144));
    ASSERT_TRUE(result.status.ok()) << c.what << ": " << result.status;
    EXPECT_EQ(result.tokens, expected) << c.what;
    EXPECT_EQ(result.usage.cached_prompt_tokens(), 0) << c.what;
  }
  DecodeRequest bad = Hinted(RandomTokens(random, 20), Ref(*prefill_), 21);
  EXPECT_EQ(Decode(channel_, bad).status.code(), absl::StatusCode::kInvalidArgument);
  bad = Hinted(RandomTokens(random, 20), Ref(*prefill_), 16);
  bad.mutable_kv_holder()->clear_address();
  EXPECT_EQ(Decode(channel_, bad).status.code(), absl::StatusCode::kInvalidArgument);
  ExpectAllIdle();
}

TEST_F(KvFetchTest, AHolderThatEndsInTheMiddleCostsNoAnswer) {
  StartThree();
  std::mt19937 random(testing::TestSeed(33));
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(RandomTokens(random, 400));
  for (const auto& prompt : prompts) {
    ASSERT_TRUE(Decode(channel_, Request(prompt, Greedy(), 1)).status.ok());
  }
  FlushDecode();
  const internal::v1::WorkerRef holder = Ref(*prefill_);
  std::vector<DecodeResult> results(prompts.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const DecodeRequest request = Hinted(prompts[i], holder, 384);
    clients.emplace_back([&, i, request] { results[i] = Decode(channel_, request); });
  }
  prefill_->Stop();
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(results[i].status.ok()) << results[i].status;
    EXPECT_EQ(results[i].tokens, TheOracle().Generate(prompts[i], Greedy(), 8));
  }
  EXPECT_TRUE(WaitUntilIdle(second_->address()).ok());
  EXPECT_TRUE(WaitUntilIdle(decode_->address()).ok());
}

TEST_F(KvFetchTest, AReceiverThatEndsInTheMiddleLeavesNothingAtTheHolder) {
  StartThree();
  std::mt19937 random(testing::TestSeed(34));
  std::vector<std::thread> clients;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 4; ++i) prompts.push_back(RandomTokens(random, 400));
  for (const auto& prompt : prompts) {
    ASSERT_TRUE(Decode(channel_, Request(prompt, Greedy(), 1)).status.ok());
  }
  FlushDecode();
  for (const auto& prompt : prompts) {
    const DecodeRequest request = Hinted(prompt, Ref(*prefill_), 384);
    // Answered, or lost with the worker.
    clients.emplace_back([this, request] { Decode(channel_, request); });
  }
  second_->Stop();
  for (std::thread& client : clients) client.join();
  ExpectIdle();
}

TEST_F(KvFetchTest, TheHolderSendsWhatItHasAndChecksWhatItIsAsked) {
  StartThree();
  std::mt19937 random(testing::TestSeed(35));
  std::vector<int32_t> prompt = RandomTokens(random, 128);
  ASSERT_TRUE(Decode(channel_, Request(prompt, Greedy(), 1)).status.ok());
  const auto unchanged = [](auto&) {};
  const int64_t block_bytes = TheOracle().engine().kv_layout().BlockBytes();
  const Fetched whole = Fetch(prompt, unchanged);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.summary.block_count, 8);
  EXPECT_EQ(whole.summary.kv_bytes, 8 * block_bytes);
  const Fetched tail = Fetch(prompt, [](auto& request) {
    request.set_first_block(5);
    Reseal(request);
  });
  ASSERT_TRUE(tail.status.ok()) << tail.status;
  EXPECT_EQ(tail.summary.block_count, 3);
  EXPECT_TRUE(std::equal(tail.blocks.begin() + 5 * block_bytes, tail.blocks.end(),
                         whole.blocks.begin() + 5 * block_bytes));
  std::vector<int32_t> longer = prompt;
  longer.resize(256, 7);
  EXPECT_EQ(Fetch(longer, unchanged).summary.block_count, 8) << "fewer than requested";
  const std::vector<int32_t> unknown(64, 9);
  const Fetched none = Fetch(unknown, unchanged);
  EXPECT_TRUE(none.status.ok()) << none.status;
  EXPECT_EQ(none.summary.block_count, 0);

  struct Case {
    std::string reason;
    std::function<void(internal::v1::FetchKvRequest&)> change;
  };
  const std::vector<Case> cases = {
      {"CHECKSUM", [](auto& r) { r.set_tokens(3, 1 + r.tokens(3)); }},
      {"STALE_EPOCH", [](auto& r) { r.set_holder_epoch(1), Reseal(r); }},
      {"MODEL_MISMATCH", [](auto& r) { r.set_model_fingerprint(1), Reseal(r); }},
      {"KV_LAYOUT", [](auto& r) { r.set_kv_layout_fingerprint(1), Reseal(r); }},
      {"PROMPT_LENGTH", [](auto& r) { r.add_tokens(1), Reseal(r); }},
      {"PROMPT_LENGTH", [](auto& r) { r.clear_tokens(), Reseal(r); }},
      {"PROMPT_LENGTH", [](auto& r) { r.mutable_tokens()->Resize(4096, 1), Reseal(r); }},
      {"OUT_OF_RANGE", [](auto& r) { r.set_tokens(3, -1), Reseal(r); }},
      {"OUT_OF_RANGE", [](auto& r) { r.set_cache_salt(std::string(300, 'x')), Reseal(r); }},
      {"FIRST_BLOCK", [](auto& r) { r.set_first_block(8), Reseal(r); }},
      {"FIRST_BLOCK", [](auto& r) { r.set_first_block(-1), Reseal(r); }},
  };
  for (const Case& c : cases) {
    // The plan is of the unchanged request, apart from first_block.
    std::vector<int32_t> tokens = prompt;
    const Fetched refused = Fetch(tokens, [&c](auto& request) { c.change(request); });
    EXPECT_EQ(ErrorReason(refused.status), c.reason) << refused.status;
    EXPECT_EQ(refused.summary.block_count, 0);
  }
  EXPECT_EQ(ErrorReason(Fetch(prompt, unchanged, absl::Seconds(60)).status), "DEADLINE");
  for (int i = 0; i < 20; ++i) Fetch(prompt, unchanged, absl::Seconds(10), /*cancel=*/true);
  ExpectAllIdle();
}

TEST_F(KvFetchTest, WithoutTheFlagNothingIsSent) {
  StartThree(Options());
  std::mt19937 random(testing::TestSeed(36));
  const std::vector<int32_t> prompt = RandomTokens(random, 128);
  ASSERT_TRUE(Decode(channel_, Request(prompt, Greedy(), 1)).status.ok());
  EXPECT_EQ(ErrorReason(Fetch(prompt, [](auto&) {}).status), "KV_FETCH_OFF");
  FlushDecode();
  const DecodeResult result = Decode(channel_, Hinted(prompt, Ref(*prefill_), 112));
  EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 8));
  EXPECT_EQ(result.usage.cached_prompt_tokens(), 0);
}

TEST_F(KvFetchTest, AnAnswersKvIsWrittenBackToTheWorkerOfItsPrompt) {
  decode_worker::DecodeOptions write_back = NothingLocal();
  write_back.kv_write_back = true;
  StartThree(Fetching(), write_back);
  std::mt19937 random(testing::TestSeed(37));
  std::vector<int32_t> conversation = RandomTokens(random, 100);
  for (int turn = 1; turn <= 3; ++turn) {
    const std::vector<int32_t> expected = TheOracle().Generate(conversation, Greedy(), 60);
    const DecodeResult result = Decode(channel_, Request(conversation, Greedy(), 60));
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.tokens, expected) << "turn " << turn;
    if (turn > 1) {
      // The prompt up to the last whole block of the turn before, answer included.
      EXPECT_EQ(result.usage.cached_prompt_tokens(),
                (static_cast<int>(conversation.size()) - 8 - 1) / 16 * 16);
    }
    conversation.insert(conversation.end(), expected.begin(), expected.end());
    for (int32_t token : RandomTokens(random, 8)) conversation.push_back(token);
    const int written_back = (static_cast<int>(conversation.size()) - 8 - 1) / 16;
    ASSERT_TRUE(AwaitCachedBlocks(*prefill_, written_back));
    // The next turn finds nothing on the decode worker: what is cached is the prefill worker's.
    EXPECT_TRUE(WaitUntilIdle(decode_->address()).ok());
    FlushDecode();
  }
  EXPECT_EQ(Metric(*decode_, "baton_kv_offers_total", R"(result="taken")"), 3);
  EXPECT_EQ(Metric(*prefill_, "baton_kv_fetches_total", R"(result="fetched")"), 3);
  ExpectAllIdle();
}

TEST_F(KvFetchTest, FetchesAndWriteBacksThroughTinyPoolsEqualTheOracle) {
  worker::WorkerOptions options = Fetching();
  options.num_blocks = 40;  // admission, preemption, eviction and pins all the time
  decode_worker::DecodeOptions write_back = NothingLocal();
  write_back.kv_write_back = true;
  StartThree(options, write_back);
  struct Case {
    DecodeRequest request;
    std::vector<int32_t> expected;
  };
  std::mt19937 random(testing::TestSeed(41));
  const std::vector<std::vector<int32_t>> prefixes = {RandomTokens(random, 100),
                                                      RandomTokens(random, 130)};
  const internal::v1::WorkerRef workers[] = {Ref(*prefill_), Ref(*second_), Ref(*decode_)};
  std::vector<Case> cases;
  for (int i = 0; i < 120; ++i) {
    std::vector<int32_t> prompt = prefixes[random() % 2];
    // True or not, for the holder has evicted it, or never had it.
    const int held = static_cast<int>(prompt.size()) - static_cast<int>(random() % 30);
    for (const int32_t token : RandomTokens(random, 1 + static_cast<int>(random() % 100))) {
      prompt.push_back(token);
    }
    const int max_tokens = 4 + static_cast<int>(random() % 60);
    Case c;
    c.request = Hinted(prompt, workers[random() % 3], held, max_tokens);
    *c.request.mutable_prefill() = workers[random() % 2];
    c.expected = TheOracle().Generate(prompt, Greedy(), max_tokens);
    cases.push_back(std::move(c));
  }
  // It is no test of fetches without any, and quick steps leave few to be made.
  const auto taken = [&] { return Metric(*decode_, "baton_kv_offers_total", R"(result="taken")"); };
  const auto fetched = [&] {
    return Metric(*prefill_, "baton_kv_fetch_bytes_total") +
           Metric(*second_, "baton_kv_fetch_bytes_total");
  };
  for (int round = 0; round < 50 && (round == 0 || taken() == 0 || fetched() == 0); ++round) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 12; ++i) {
      clients.emplace_back([&] {
        for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
          const DecodeResult result = Decode(channel_, cases[at].request);
          EXPECT_TRUE(result.status.ok()) << result.status;
          EXPECT_EQ(result.tokens, cases[at].expected) << "case " << at;
        }
      });
    }
    for (std::thread& client : clients) client.join();
  }
  ExpectAllIdle();
  EXPECT_GT(taken(), 0);
  EXPECT_GT(fetched(), 0);
}

// A holder that answers with KV of zeros, in frames that the test spoils.
class LyingHolder final : public internal::v1::KvService::WithRawCallbackMethod_FetchKv<
                              internal::v1::KvService::Service> {
 public:
  using Frames = std::vector<internal::v1::PrefillFrame>;
  explicit LyingHolder(const kv::KvLayout& layout) : layout_(layout) {
    rpc_ = *RpcServer::Start({}, {this}, {"baton.internal.v1.KvService"});
  }
  ~LyingHolder() override { rpc_->Stop(absl::ZeroDuration()); }

  // All for the next call. `end`: nullopt: the stream stays open until its caller ends it.
  std::function<void(Frames&)> spoil = [](Frames&) {};
  std::optional<grpc::Status> end = grpc::Status::OK;
  std::unique_ptr<absl::Notification> opened = std::make_unique<absl::Notification>();
  std::unique_ptr<absl::Notification> gone = std::make_unique<absl::Notification>();

  internal::v1::WorkerRef Ref(const std::string& worker_id) const {
    internal::v1::WorkerRef ref;
    ref.set_address(rpc_->address());
    ref.set_worker_id(worker_id);
    ref.set_epoch(kEpoch);
    return ref;
  }
  static void Seal(internal::v1::PrefillFrame& frame) {
    transfer::Segments payload;
    if (!frame.payload().empty()) payload.push_back(absl::MakeConstSpan(frame.payload()));
    frame.set_checksum(transfer::FrameChecksum(frame, payload));
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchKv(grpc::CallbackServerContext*,
                                                      const grpc::ByteBuffer* bytes) override {
    const internal::v1::FetchKvRequest request =
        worker::ParseRequest<internal::v1::FetchKvRequest>(*bytes).value();
    const int blocks = request.tokens_size() / layout_.block_tokens - request.first_block();
    Frames frames(1);
    frames[0].mutable_accepted()->set_kv_layout_fingerprint(layout_.Fingerprint());
    frames[0].mutable_accepted()->set_block_count(blocks);
    for (int layer = 0; layer < layout_.layers; ++layer) {
      internal::v1::PrefillFrame& frame = frames.emplace_back();
      frame.mutable_kv_chunk()->set_layer(layer);
      frame.mutable_kv_chunk()->set_first_block(request.first_block());
      frame.mutable_kv_chunk()->set_block_count(blocks);
      frame.set_payload(std::string(static_cast<size_t>(blocks * layout_.ChunkBytes()), '\0'));
    }
    frames.emplace_back().mutable_commit()->set_kv_chunk_count(layout_.layers);
    for (internal::v1::PrefillFrame& frame : frames) {
      frame.set_transfer_id(request.transfer_id());
      frame.set_epoch(kEpoch);
      Seal(frame);
    }
    spoil(frames);
    auto stream = std::make_shared<Stream>(*this);
    auto* reactor = Stream::Open(stream);
    for (const auto& frame : frames) stream->Push(frame.SerializeAsString());
    if (end) stream->Finish(*end);
    opened->Notify();
    return reactor;
  }

 private:
  static constexpr uint64_t kEpoch = 77;
  class Stream final : public ServerStream<grpc::ByteBuffer, std::string> {
   public:
    explicit Stream(LyingHolder& holder) : holder_(holder) {}
    void Encode(std::string item, grpc::ByteBuffer* message) override {
      grpc::Slice slice(item);
      *message = grpc::ByteBuffer(&slice, 1);
    }
    void OnPeerGone() override {
      if (holder_.end) return;
      holder_.gone->Notify();
      Finish(grpc::Status::CANCELLED);
    }

   private:
    LyingHolder& holder_;
  };

  const kv::KvLayout layout_;
  std::unique_ptr<RpcServer> rpc_;
};

TEST_F(KvFetchTest, WhatIsDamagedOrCutOffIsComputed) {
  StartThree();
  LyingHolder liar(TheOracle().engine().kv_layout());
  using Frames = LyingHolder::Frames;
  struct Case {
    std::string what;
    std::function<void(Frames&)> spoil;
    std::optional<grpc::Status> end = grpc::Status::OK;
  };
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, "the server goes away");
  const std::vector<Case> cases = {
      {"a flipped bit", [](Frames& f) { (*f[1].mutable_payload())[100] ^= 4; }},
      {"another layer", [](Frames& f) { f[1].mutable_kv_chunk()->set_layer(1); }},
      {"another epoch", [](Frames& f) { f[1].set_epoch(78), LyingHolder::Seal(f[1]); }},
      {"another transfer", [](Frames& f) { f[1].set_transfer_id(1), LyingHolder::Seal(f[1]); }},
      {"a chunk less", [](Frames& f) { f.erase(f.begin() + 1); }},
      {"no commit", [](Frames& f) { f.pop_back(); }},
      {"more blocks",
       [](Frames& f) {
         f[0].mutable_accepted()->set_block_count(100);
         LyingHolder::Seal(f[0]);
       }},
      {"a first token",
       [](Frames& f) {
         f[1].mutable_first_token()->set_token_id(3);
         f[1].clear_payload();
         LyingHolder::Seal(f[1]);
       }},
      {"the holder ends in the middle", [](Frames& f) { f.resize(2); }, lost},
      {"the holder ends before the commit", [](Frames& f) { f.pop_back(); }, lost},
      {"the holder stops sending", [](Frames& f) { f.resize(2); }, std::nullopt},
  };
  std::mt19937 random(testing::TestSeed(38));
  for (const Case& c : cases) {
    const std::vector<int32_t> prompt = RandomTokens(random, 150);
    liar.spoil = c.spoil;
    liar.end = c.end;
    liar.opened = std::make_unique<absl::Notification>();
    const DecodeResult result = Decode(channel_, Hinted(prompt, liar.Ref(c.what), 144));
    ASSERT_TRUE(result.status.ok()) << c.what << ": " << result.status;
    EXPECT_TRUE(liar.opened->HasBeenNotified()) << c.what;
    EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 8)) << c.what;
    EXPECT_EQ(result.usage.cached_prompt_tokens(), 0) << c.what;
    if (!c.end) liar.gone->WaitForNotification();
  }
  EXPECT_EQ(Metric(*second_, "baton_kv_fetches_total", R"(result="failed")"), cases.size());
  ExpectAllIdle();
  // The same frames unspoiled are taken: it is the checks that refused the others.
  liar.spoil = [](Frames&) {};
  liar.end = grpc::Status::OK;
  liar.opened = std::make_unique<absl::Notification>();
  const DecodeResult taken =
      Decode(channel_, Hinted(RandomTokens(random, 150), liar.Ref("believed"), 144));
  EXPECT_EQ(taken.usage.cached_prompt_tokens(), 144);
}

TEST_F(KvFetchTest, AnOpenFetchEndsWithItsRequestAndWithItsWorker) {
  StartThree();
  LyingHolder silent(TheOracle().engine().kv_layout());
  silent.spoil = [](LyingHolder::Frames& frames) { frames.resize(2); };
  silent.end = std::nullopt;
  std::mt19937 random(testing::TestSeed(39));
  auto stub = internal::v1::DecodeService::NewStub(channel_);
  const auto open = [&](grpc::ClientContext& context, const std::string& worker_id) {
    silent.opened = std::make_unique<absl::Notification>();
    silent.gone = std::make_unique<absl::Notification>();
    context.set_deadline(testing::TestDeadline());
    auto reader =
        stub->Decode(&context, Hinted(RandomTokens(random, 150), silent.Ref(worker_id), 144));
    silent.opened->WaitForNotification();
    return reader;
  };
  grpc::ClientContext cancelled;
  auto reader = open(cancelled, "cancelled");
  cancelled.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  silent.gone->WaitForNotification();
  ExpectAllIdle();
  EXPECT_EQ(BlockCounts(second_->address()).free(), 256);
  grpc::ClientContext stopped;
  reader = open(stopped, "stopped");
  second_->Stop();
  silent.gone->WaitForNotification();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(WaitUntilIdle(decode_->address()).ok());
}

}  // namespace
}  // namespace baton
