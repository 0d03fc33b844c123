// A prefill and a decode worker over real gRPC: one answer, no leaks, whatever the peer does.
#include "tests/cluster/worker_pair.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/base/error.h"
#include "common/transfer/checksum.h"
#include "common/transfer/kv_sender.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

// KV over gRPC, and through shared memory from the second transfer on or so.
class TransportTest : public WorkerPairTest, public ::testing::WithParamInterface<const char*> {
 protected:
  TransportTest() { transport_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Over, TransportTest, ::testing::Values("grpc", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TransportTest, TokensEqualTheOracleColdAndWarm) {
  StartPair();
  std::mt19937 random(testing::TestSeed(17));
  for (int i = 0; i < 40; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + static_cast<int>(random() % 300));
    const model::SamplingParams sampling = i % 2 == 0 ? Greedy() : Seeded(i);
    const std::vector<int32_t> expected = TheOracle().Generate(prompt, sampling, 12);
    for (const bool warm : {false, true}) {
      const DecodeResult result = Decode(channel_, Request(prompt, sampling, 12));
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.tokens, expected) << "prompt " << i << (warm ? " warm" : " cold");
      EXPECT_EQ(result.finish, DecodeResponse::FINISH_LENGTH);
      const int whole_blocks = (static_cast<int>(prompt.size()) - 1) / 16 * 16;
      EXPECT_EQ(result.usage.cached_prompt_tokens(), warm ? whole_blocks : 0);
      // The decode worker has the whole blocks of the first time, and asks for the last one only.
      const int blocks = (static_cast<int>(prompt.size()) + 15) / 16;
      const kv::KvLayout& layout = TheOracle().engine().kv_layout();
      EXPECT_EQ(result.usage.kv_bytes(),
                layout.NeededBytes(warm ? blocks - 1 : 0, blocks, whole_blocks / 16));
      if (decode_->shared_pools() != nullptr) decode_->shared_pools()->WaitUntilTried();
    }
  }
  ExpectIdle();
  const auto transfers = [this](const char* label) {
    return testing::MetricSum(decode_->metrics_address(), "baton_kv_transfers_total", label);
  };
  EXPECT_EQ(transfers("reason=\"mapped\""), transport_ == "shm" ? 80 : 0);
  EXPECT_EQ(transfers("reason=\"off\""), transport_ == "grpc" ? 80 : 0);
}

// One worker shares, or is able to read; the other is not.
TEST_F(WorkerPairTest, KvIsSentUnlessBothEndsShare) {
  for (const bool prefill_shares : {true, false}) {
    worker::WorkerOptions prefill = Options(), decode = Options();
    (prefill_shares ? decode : prefill).kv_transport = "grpc";
    prefill_ = *prefill_worker::PrefillWorker::Start(prefill);
    decode_ = *decode_worker::DecodeWorker::Start(decode, NothingLocal());
    channel_ = MakeChannel(decode_->address());
    for (const std::vector<int32_t>& prompt : {std::vector<int32_t>(40, 7), {1, 2, 3}}) {
      const DecodeResult result = Decode(channel_, Request(prompt, Greedy(), 4));
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 4));
    }
    EXPECT_EQ(testing::MetricSum(decode_->metrics_address(), "baton_kv_transfers_total",
                                 prefill_shares ? "reason=\"off\"" : "reason=\"not_offered\""),
              2);
    ExpectIdle();
  }
}

// A new prefill worker is another pool; the memory of the old one is given back.
TEST_F(WorkerPairTest, ARestartedPrefillWorkerIsMappedAnew) {
  transport_ = "shm";
  StartPair();
  const auto ask = [&] {
    const std::vector<int32_t> prompt(40, 7);
    const DecodeResult result = Decode(channel_, Request(prompt, Greedy(), 4));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 4));
    decode_->shared_pools()->WaitUntilTried();
  };
  ask();
  const uint64_t old_epoch = prefill_->card().epoch();
  EXPECT_EQ(decode_->shared_pools()->Find(old_epoch).reason, transfer::PlaneReason::kMapped);
  prefill_.reset();
  while (decode_->shared_pools()->Find(old_epoch).pool != nullptr) std::this_thread::yield();
  worker::WorkerOptions options = Options();
  options.kv_transport = transport_;
  prefill_ = *prefill_worker::PrefillWorker::Start(options);
  EXPECT_EQ(decode_->shared_pools()->Find(prefill_->card().epoch()).reason,
            transfer::PlaneReason::kMapped);
  ask();
  ExpectIdle();
}

TEST_P(TransportTest, ManyAtOnceThroughATinyPoolEqualTheOracle) {
  worker::WorkerOptions options = Options();
  options.num_blocks =
      40;  // two long requests fill it: admission, eviction and waiting all the time
  StartPair(options, options);
  struct Case {
    std::vector<int32_t> prompt;
    model::SamplingParams sampling;
    std::vector<int32_t> expected;
  };
  std::mt19937 random(testing::TestSeed(23));
  const std::vector<int32_t> shared = RandomTokens(random, 100);
  std::vector<Case> cases;
  for (int i = 0; i < 96; ++i) {
    Case c;
    if (i % 2 == 0) c.prompt = shared;
    const std::vector<int32_t> tail = RandomTokens(random, 1 + static_cast<int>(random() % 150));
    c.prompt.insert(c.prompt.end(), tail.begin(), tail.end());
    c.sampling = i % 3 == 0 ? Seeded(i) : Greedy();
    c.expected = TheOracle().Generate(c.prompt, c.sampling, 16);
    cases.push_back(std::move(c));
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
        const Case& c = cases[at];
        const DecodeResult result = Decode(channel_, Request(c.prompt, c.sampling, 16));
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, c.expected) << "case " << at;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
}

TEST_P(TransportTest, EightAtOnceWithOneColdPrefixComputeItOnce) {
  worker::WorkerOptions options = Options();
  options.max_num_batched_tokens = 32;
  StartPair(options, options);
  std::mt19937 random(testing::TestSeed(29));
  const std::vector<int32_t> shared = RandomTokens(random, 320);
  constexpr int kRequests = 8;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < kRequests; ++i) {
    std::vector<int32_t> prompt = shared;
    const std::vector<int32_t> tail = RandomTokens(random, 20);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompt[320] = i;  // nothing but the prefix is shared
    expected.push_back(TheOracle().Generate(prompt, Greedy(), 8));
    prompts.push_back(std::move(prompt));
  }
  std::vector<DecodeResult> results(kRequests);
  std::vector<std::thread> clients;
  for (int i = 0; i < kRequests; ++i) {
    clients.emplace_back(
        [&, i] { results[i] = Decode(channel_, Request(prompts[i], Greedy(), 8)); });
  }
  for (std::thread& client : clients) client.join();
  int computed = 0;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(results[i].status.ok()) << results[i].status;
    EXPECT_EQ(results[i].tokens, expected[i]) << "request " << i;
    computed += static_cast<int>(prompts[i].size()) - results[i].usage.cached_prompt_tokens();
  }
  EXPECT_EQ(computed, 320 + kRequests * 20);
  ExpectIdle();
}

TEST_F(WorkerPairTest, AStopTokenEndsTheAnswerWithStop) {
  StartPair();
  std::mt19937 random(testing::TestSeed(5));
  const std::vector<int32_t> prompt = RandomTokens(random, 40);
  const std::vector<int32_t> expected = TheOracle().Generate(prompt, Greedy(), 10);
  for (const int at : {0, 4}) {
    DecodeRequest request = Request(prompt, Greedy(), 10);
    request.add_stop_token_ids(expected[at]);
    const DecodeResult result = Decode(channel_, request);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.finish, DecodeResponse::FINISH_STOP);
    EXPECT_EQ(result.tokens.back(), expected[at]);
    EXPECT_LE(result.tokens.size(), static_cast<size_t>(at + 1));
  }
  // One token asked for: the answer may end before its KV has arrived.
  const DecodeResult one = Decode(channel_, Request(prompt, Greedy(), 1));
  ASSERT_TRUE(one.status.ok()) << one.status;
  EXPECT_EQ(one.tokens, std::vector<int32_t>{expected[0]});
  ExpectIdle();
}

TEST_F(WorkerPairTest, TheAnswerStopsWhereTheContextIsFull) {
  StartPair();
  std::mt19937 random(testing::TestSeed(6));
  const DecodeResult result =
      Decode(channel_, Request(RandomTokens(random, 500), Greedy(), 1'000'000));
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.tokens.size(), 12u);  // tiny-qwen3 has 512 positions
  EXPECT_EQ(result.finish, DecodeResponse::FINISH_LENGTH);
}

TEST_P(TransportTest, CancelsAtEveryMomentLeaveNoBlock) {
  StartPair();
  auto stub = internal::v1::DecodeService::NewStub(channel_);
  std::mt19937 random(testing::TestSeed(7));
  int cancelled = 0;
  for (int i = 0; i < 60; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + static_cast<int>(random() % 200));
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    auto reader = stub->Decode(&context, Request(prompt, Greedy(), 300));
    DecodeResponse response;
    // After 0, 1, 2, … messages; 0 falls anywhere between admission and the first frame. An answer
    // that was faster than the cancel is whole.
    for (int read = 0; read < i % 5 && reader->Read(&response); ++read) {
    }
    context.TryCancel();
    while (reader->Read(&response)) {
    }
    const grpc::StatusCode code = reader->Finish().error_code();
    cancelled += code == grpc::StatusCode::CANCELLED;
    EXPECT_TRUE(code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::OK) << code;
  }
  EXPECT_GT(cancelled, 20);
  ExpectIdle();
}

TEST_P(TransportTest, ADeadlineEndsTheWorkOnBothSides) {
  StartPair();
  std::mt19937 random(testing::TestSeed(8));
  // The fastest of three: the first connects, and each may be held up.
  auto whole = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(Decode(channel_, Request(RandomTokens(random, 200), Greedy(), 300)).tokens.size(),
              300u);
    whole = std::min(whole, std::chrono::steady_clock::now() - begin);
  }
  auto stub = internal::v1::DecodeService::NewStub(channel_);
  int late = 0;
  // A deadline at each tenth of what an answer takes: while it waits, transfers, decodes. On busy
  // cores gRPC may notice a deadline some milliseconds late, when the answer is whole: then the
  // test goes on with others.
  for (int i = 0; i < 9 || (i < 900 && late == 0); ++i) {
    const int tenth = 1 + i % 9;
    grpc::ClientContext context;
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::system_clock::duration>(whole * tenth / 10));
    auto reader = stub->Decode(&context, Request(RandomTokens(random, 200), Greedy(), 300));
    DecodeResponse response;
    int tokens = 0;
    while (reader->Read(&response)) tokens += response.token_ids_size();
    const grpc::Status status = reader->Finish();
    if (status.ok()) {
      EXPECT_EQ(tokens, 300) << "faster than those: then it must be whole";
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      ++late;
    }
  }
  EXPECT_GT(late, 0);
  ExpectIdle();
}

TEST_F(WorkerPairTest, BadRequestsAreNamedAndLeaveNothing) {
  StartPair();
  const std::vector<int32_t> prompt = {1, 2, 3};
  struct Case {
    std::function<void(DecodeRequest&)> change;
    absl::StatusCode code;
    std::string reason;
  };
  using Code = absl::StatusCode;
  const std::vector<Case> cases = {
      {[](auto& r) { r.clear_tokens(); }, Code::kInvalidArgument, "PROMPT_LENGTH"},
      {[](auto& r) { r.mutable_tokens()->Resize(512, 1); }, Code::kInvalidArgument,
       "PROMPT_LENGTH"},
      {[](auto& r) { r.set_tokens(1, -1); }, Code::kInvalidArgument, "OUT_OF_RANGE"},
      {[](auto& r) { r.set_tokens(1, TheOracle().engine().config().token_count); },
       Code::kInvalidArgument, "OUT_OF_RANGE"},
      {[](auto& r) { r.set_max_tokens(0); }, Code::kInvalidArgument, "OUT_OF_RANGE"},
      {[](auto& r) { r.set_max_tokens(-5); }, Code::kInvalidArgument, "OUT_OF_RANGE"},
      {[](auto& r) { r.mutable_stop_token_ids()->Resize(2000, 1); }, Code::kInvalidArgument,
       "TOO_MANY_STOPS"},
      {[](auto& r) { r.mutable_prefill()->clear_address(); }, Code::kInvalidArgument,
       "PREFILL_ADDRESS"},
      {[](auto& r) { r.set_decode_epoch(1); }, Code::kUnavailable, "STALE_EPOCH"},
      {[](auto& r) { r.set_model_fingerprint(1); }, Code::kUnavailable, "MODEL_MISMATCH"},
      {[](auto& r) { r.mutable_prefill()->set_epoch(1); }, Code::kUnavailable, "STALE_EPOCH"},
      {[](auto& r) { r.mutable_prefill()->set_address("127.0.0.1:1"); }, Code::kUnavailable,
       "PREFILL_LOST"},
  };
  for (const Case& c : cases) {
    DecodeRequest request = Request(prompt, Greedy(), 4);
    c.change(request);
    const DecodeResult result = Decode(channel_, request);
    EXPECT_EQ(result.status.code(), c.code) << c.reason << ": " << result.status;
    EXPECT_EQ(ErrorReason(result.status), c.reason) << result.status;
    EXPECT_TRUE(result.tokens.empty());
  }
  for (const float temperature : {-1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    DecodeRequest request = Request(prompt, Greedy(), 4);
    request.mutable_sampling()->set_temperature(temperature);
    EXPECT_EQ(Decode(channel_, request).status.code(), Code::kInvalidArgument);
  }
  ExpectIdle();
  EXPECT_TRUE(Decode(channel_, Request(prompt, Greedy(), 4)).status.ok());
}

TEST_F(WorkerPairTest, ARequestThatCanNeverFitIsRefusedAtOnce) {
  worker::WorkerOptions small = Options();
  small.num_blocks = 4;
  StartPair(Options(), small);
  std::mt19937 random(testing::TestSeed(9));
  const DecodeResult result = Decode(channel_, Request(RandomTokens(random, 60), Greedy(), 30));
  EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(result.status), "KV_POOL_TOO_SMALL");
}

TEST_F(WorkerPairTest, AnotherBlockSizeIsRefusedWithBothLayouts) {
  worker::WorkerOptions wide = Options();
  wide.block_size = 32;
  StartPair(Options(), wide);
  const DecodeResult result = Decode(channel_, Request({1, 2, 3}, Greedy(), 4));
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(result.status), "KV_LAYOUT");
  ExpectIdle();
}

TEST_F(WorkerPairTest, ASaltSeparatesPrefixes) {
  StartPair();
  EXPECT_TRUE(prefill_->card().prefix_caching());
  EXPECT_TRUE(decode_->card().prefix_caching());
  std::mt19937 random(testing::TestSeed(10));
  const std::vector<int32_t> prompt = RandomTokens(random, 64);
  DecodeRequest request = Request(prompt, Greedy(), 4);
  Decode(channel_, request);
  EXPECT_EQ(Decode(channel_, request).usage.cached_prompt_tokens(), 48);
  request.set_cache_salt("other tenant");
  EXPECT_EQ(Decode(channel_, request).usage.cached_prompt_tokens(), 0);
}

TEST_P(TransportTest, WithoutPrefixCachingNothingStays) {
  worker::WorkerOptions options = Options();
  options.enable_prefix_caching = false;
  StartPair(options, options);
  EXPECT_FALSE(prefill_->card().prefix_caching());
  EXPECT_FALSE(decode_->card().prefix_caching());
  for (int i = 0; i < 2; ++i) {
    const DecodeResult result = Decode(channel_, Request(std::vector<int32_t>(64, 3), Greedy(), 4));
    EXPECT_EQ(result.usage.cached_prompt_tokens(), 0);
  }
  ExpectIdle();
  EXPECT_EQ(BlockCounts(prefill_->address()).cached(), 0);
}

TEST_P(TransportTest, StoppingPrefillInTheMiddleFailsRequestsAndLeavesNoBlock) {
  StartPair();
  std::mt19937 random(testing::TestSeed(11));
  std::vector<std::thread> clients;
  std::atomic<int> failed{0};
  for (int i = 0; i < 8; ++i) {
    const DecodeRequest request = Request(RandomTokens(random, 400), Greedy(), 100);
    clients.emplace_back([this, request, &failed] {
      const DecodeResult result = Decode(channel_, request);
      if (!result.status.ok()) {
        EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
        ++failed;
      }
    });
  }
  prefill_->Stop();
  for (std::thread& client : clients) client.join();
  EXPECT_GT(failed, 0);
  EXPECT_TRUE(WaitUntilIdle(decode_->address()).ok());
  // What had ended before is cached.
  const auto counts = BlockCounts(decode_->address());
  EXPECT_EQ(counts.free() + counts.cached(), decode_->card().total_blocks());
}

TEST_P(TransportTest, ADrainLetsStreamsFinish) {
  StartPair();
  std::mt19937 random(testing::TestSeed(12));
  const std::vector<int32_t> prompt = RandomTokens(random, 100);
  const std::vector<int32_t> expected = TheOracle().Generate(prompt, Greedy(), 60);
  auto stub = internal::v1::DecodeService::NewStub(channel_);
  grpc::ClientContext context;
  context.set_deadline(testing::TestDeadline());
  auto reader = stub->Decode(&context, Request(prompt, Greedy(), 60));
  DecodeResponse response;
  ASSERT_TRUE(reader->Read(&response));
  std::vector<int32_t> tokens(response.token_ids().begin(), response.token_ids().end());
  std::thread drain([this] { decode_->Drain(absl::Seconds(60)); });
  while (reader->Read(&response)) {
    tokens.insert(tokens.end(), response.token_ids().begin(), response.token_ids().end());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, expected);
  drain.join();
}

// A router that gets no reports takes the worker for dead, and moves its requests elsewhere.
TEST_F(WorkerPairTest, ADrainingDecodeWorkerReportsUntilItsStreamsHaveEnded) {
  StartPair();
  std::mt19937 random(testing::TestSeed(13));
  DecodeRequest request = Request(RandomTokens(random, 100), Seeded(1), 400);
  // Some 400 kB of answer, on a connection whose window is fixed: what is not read stays with the
  // worker, so the stream stays open.
  request.set_n(4);
  request.mutable_sampling()->set_logprobs(20);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto stub = internal::v1::DecodeService::NewStub(
      grpc::CreateCustomChannel(decode_->address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(testing::TestDeadline());
  auto reader = stub->Decode(&context, request);
  DecodeResponse response;
  ASSERT_TRUE(reader->Read(&response));
  auto watch_stub = internal::v1::WorkerService::NewStub(channel_);
  grpc::ClientContext watching;
  watching.set_deadline(testing::TestDeadline());
  auto reports = watch_stub->Watch(&watching, {});
  internal::v1::WatchResponse report;
  ASSERT_TRUE(reports->Read(&report));

  std::atomic<bool> drained{false};
  std::thread drain([&] {
    decode_->Drain(absl::Seconds(100));
    drained = true;
  });
  int draining_reports = 0;
  // The second comes a heartbeat after the first.
  while (draining_reports < 2 && reports->Read(&report)) {
    draining_reports += report.has_load() && report.load().draining() ? 1 : 0;
  }
  EXPECT_EQ(draining_reports, 2);
  EXPECT_FALSE(drained) << "with an open stream";
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  while (reports->Read(&report)) {
  }
  EXPECT_EQ(ErrorReason(FromGrpcStatus(reports->Finish())), "DRAINING");
  drain.join();
}

// A prefill worker that lies: a real sender whose frames are then spoilt.
class LyingPrefill final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                               internal::v1::PrefillService::Service> {
 public:
  using Spoil = std::function<void(std::vector<internal::v1::PrefillFrame>&)>;
  LyingPrefill(const engine::Engine& engine, uint64_t epoch) : engine_(engine), epoch_(epoch) {}
  Spoil spoil;

  // Sends whole frames at once.
  class Stream final : public ServerStream<grpc::ByteBuffer, std::string> {
    void Encode(std::string item, grpc::ByteBuffer* message) override {
      grpc::Slice slice(item);
      *message = grpc::ByteBuffer(&slice, 1);
    }
  };

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes) override {
    internal::v1::PrefillRequest request;
    grpc::ByteBuffer copy(*bytes);
    BATON_CHECK(
        grpc::SerializationTraits<internal::v1::PrefillRequest>::Deserialize(&copy, &request).ok());
    auto stream = std::make_shared<Stream>();
    for (const internal::v1::PrefillFrame& frame : Frames(request)) {
      stream->Push(frame.SerializeAsString());
    }
    stream->Finish(grpc::Status::OK);
    return Stream::Open(stream);
  }

  static void Seal(internal::v1::PrefillFrame& frame) {
    transfer::Segments payload;
    if (!frame.payload().empty()) payload.push_back(absl::MakeConstSpan(frame.payload()));
    frame.set_checksum(transfer::FrameChecksum(frame, payload));
  }

 private:
  std::vector<internal::v1::PrefillFrame> Frames(const internal::v1::PrefillRequest& request) {
    const int blocks = (request.tokens_size() + 15) / 16;
    std::vector<internal::v1::PrefillFrame> frames(1);
    frames[0].mutable_accepted()->set_kv_layout_fingerprint(engine_.kv_layout().Fingerprint());
    frames[0].mutable_accepted()->set_block_count(blocks);
    for (int layer = 0; layer < engine_.kv_layout().layers; ++layer) {
      internal::v1::PrefillFrame& frame = frames.emplace_back();
      frame.mutable_kv_chunk()->set_layer(layer);
      frame.mutable_kv_chunk()->set_block_count(blocks);
      frame.set_payload(std::string(blocks * engine_.kv_layout().ChunkBytes(), '\0'));
    }
    frames.emplace_back().mutable_first_token()->set_token_id(5);
    frames.emplace_back().mutable_commit()->set_kv_chunk_count(engine_.kv_layout().layers);
    for (internal::v1::PrefillFrame& frame : frames) {
      frame.set_transfer_id(request.transfer_id());
      frame.set_epoch(epoch_);
      Seal(frame);
    }
    if (spoil) spoil(frames);
    return frames;
  }

  const engine::Engine& engine_;
  const uint64_t epoch_;
};

TEST_F(WorkerPairTest, NoTokenFollowsFromAFrameThatIsWrong) {
  worker::WorkerOptions forgetful = Options();
  forgetful.enable_prefix_caching = false;  // every request asks for all of its KV
  StartPair(Options(), forgetful);
  LyingPrefill liar(TheOracle().engine(), prefill_->card().epoch());
  auto server = RpcServer::Start({}, {&liar}, {});
  ASSERT_TRUE(server.ok());
  using Frames = std::vector<internal::v1::PrefillFrame>;
  struct Case {
    std::string reason;
    LyingPrefill::Spoil spoil;
  };
  const std::vector<Case> cases = {
      {"CHECKSUM", [](Frames& f) { (*f[1].mutable_payload())[100] ^= 1; }},
      {"CHECKSUM", [](Frames& f) { f[1].mutable_kv_chunk()->set_layer(2); }},
      {"STALE_EPOCH",
       [](Frames& f) {
         f[1].set_epoch(3);
         LyingPrefill::Seal(f[1]);
       }},
      {"PROTOCOL",
       [](Frames& f) {
         f[1].set_transfer_id(3);
         LyingPrefill::Seal(f[1]);
       }},
      {"KV_LAYOUT",
       [](Frames& f) {
         f[0].mutable_accepted()->set_kv_layout_fingerprint(3);
         LyingPrefill::Seal(f[0]);
       }},
      {"PROTOCOL", [](Frames& f) { f.erase(f.begin() + 2); }},     // a frame is lost
      {"PROTOCOL", [](Frames& f) { f.pop_back(); }},               // no commit
      {"PROTOCOL", [](Frames& f) { std::swap(f[2], f.back()); }},  // commit too early
      {"PROTOCOL", [](Frames& f) { f.clear(); }},                  // nothing at all
      {"PROTOCOL",
       [](Frames& f) {
         f[1].mutable_payload()->resize(7);
         LyingPrefill::Seal(f[1]);
       }},
  };
  DecodeRequest request = Request(std::vector<int32_t>(40, 9), Greedy(), 4);
  request.mutable_prefill()->set_address((*server)->address());
  // Unspoilt, the liar is believed: what follows fails for the reasons above and no other.
  EXPECT_TRUE(Decode(channel_, request).status.ok());
  for (const Case& c : cases) {
    liar.spoil = c.spoil;
    const DecodeResult result = Decode(channel_, request);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
    EXPECT_EQ(ErrorReason(result.status), c.reason) << result.status;
    // The token that prefill itself drew may be out; nothing is decoded from unverified KV.
    EXPECT_LE(result.tokens.size(), 1u);
    EXPECT_EQ(result.finish, DecodeResponse::FINISH_UNSPECIFIED);
  }
  // Duplicates and reorderings within the stream are harmless.
  liar.spoil = [](Frames& f) {
    f.insert(f.begin() + 1, f[1]);
    std::swap(f[0], f[2]);
  };
  EXPECT_TRUE(Decode(channel_, request).status.ok());
  ExpectIdle();
}

}  // namespace
}  // namespace baton
