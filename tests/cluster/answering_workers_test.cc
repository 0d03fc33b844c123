// Decode workers without prefill workers: they compute for each other, and have the tiers and
// fetches that prefill workers have. Each answer is the oracle's.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "tests/cluster/worker_pair.h"
#include "tests/common/kv_store/store_cases.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

class AnsweringWorkersTest : public ::testing::Test {
 protected:
  void Start(const worker::WorkerOptions& options,
             const decode_worker::DecodeOptions& decode = {}) {
    workers_.clear();
    channels_.clear();
    for (int i = 0; i < 2; ++i) {
      auto worker = decode_worker::DecodeWorker::Start(options, decode);
      ASSERT_TRUE(worker.ok()) << worker.status();
      channels_.push_back(MakeChannel((*worker)->address()));
      workers_.push_back(*std::move(worker));
    }
  }
  // To `answers`, whose prompt the other worker computes, or it itself.
  DecodeRequest Request(int answers, bool together, const std::vector<int32_t>& prompt,
                        int max_tokens, const model::SamplingParams& sampling = Greedy()) const {
    DecodeRequest request =
        MakeDecodeRequest(*workers_[static_cast<size_t>(1 - answers)],
                          *workers_[static_cast<size_t>(answers)], prompt, sampling, max_tokens);
    if (together) request.clear_prefill();
    return request;
  }
  void Flush(int worker) const {
    auto stub = internal::v1::WorkerService::NewStub(channels_[static_cast<size_t>(worker)]);
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    internal::v1::FlushCacheRequest request;
    request.set_epoch(workers_[static_cast<size_t>(worker)]->card().epoch());
    internal::v1::FlushCacheResponse response;
    ASSERT_TRUE(stub->FlushCache(&context, request, &response).ok());
  }
  double Metric(int worker, const std::string& name, const std::string& label = "") const {
    return testing::MetricSum(workers_[static_cast<size_t>(worker)]->metrics_address(), name,
                              label);
  }
  void ExpectIdle() const {
    for (const auto& worker : workers_) {
      ASSERT_TRUE(WaitUntilIdle(worker->address()).ok()) << WaitUntilIdle(worker->address());
      const auto counts = BlockCounts(worker->address());
      EXPECT_EQ(counts.free() + counts.cached(), counts.total());
      EXPECT_EQ(counts.open_transfers(), 0);
    }
  }

  std::vector<std::unique_ptr<decode_worker::DecodeWorker>> workers_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
};

TEST_F(AnsweringWorkersTest, TheirCardsSayWhatTheyTake) {
  decode_worker::DecodeOptions answers_only = NothingLocal();
  answers_only.serve_prefill = false;
  Start(Options(), answers_only);
  EXPECT_EQ(workers_[0]->card().capabilities_size(), 1);
  const DecodeResult refused = Decode(channels_[0], Request(0, false, {1, 2, 3}, 2));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable) << refused.status;
  Start(Options());
  EXPECT_EQ(workers_[0]->card().capabilities_size(), 3);
}

// Each holds blocks for answers whose prompts the other computes, and neither pool has room for
// all: no circle of them lasts.
TEST_F(AnsweringWorkersTest, TheyComputeForEachOtherThroughTinyPools) {
  worker::WorkerOptions options = Options();
  options.num_blocks = 24;
  decode_worker::DecodeOptions nothing_local = NothingLocal();
  Start(options, nothing_local);
  constexpr int kClients = 8, kEach = 12;
  const uint32_t seed = testing::TestSeed(71);
  SCOPED_TRACE(seed);
  std::atomic<int> lent = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(seed + static_cast<uint32_t>(c));
      testing::Oracle oracle(ModelDir());
      for (int i = 0; i < kEach; ++i) {
        const std::vector<int32_t> prompt =
            RandomTokens(random, 1 + static_cast<int>(random() % 250));
        const int max_tokens = 1 + static_cast<int>(random() % 40);
        const int answers = static_cast<int>(random() % 2);
        const model::SamplingParams sampling = i % 2 == 0 ? Greedy() : Seeded(random());
        const bool together = random() % 4 == 0;
        DecodeResult result;
        // As a router does with refusals.
        for (int attempt = 0; attempt < 1000; ++attempt) {
          result = Decode(channels_[static_cast<size_t>(answers)],
                          Request(answers, together, prompt, max_tokens, sampling));
          if (!absl::IsResourceExhausted(result.status)) break;
        }
        ASSERT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, oracle.Generate(prompt, sampling, max_tokens));
        lent += result.usage.kv_bytes() > 0 ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(lent, kClients);
  ExpectIdle();
  EXPECT_GT(Metric(0, "baton_kv_transfer_bytes_total", R"(direction="sent")"), 0);
  EXPECT_GT(Metric(1, "baton_prefill_duration_seconds_count"), 0);
}

TEST_F(AnsweringWorkersTest, TheirTiersOutliveTheirCachesAndThemselves) {
  kv_store::TemporaryDirectory directory;
  decode_worker::DecodeOptions decode;
  decode.tiers.tiers = absl::StrCat("host:64MB,file:", directory.path(), ":64MB");
  decode.tiers.segment = 32;
  decode.tiers.least_uses = 1;
  std::mt19937 random(testing::TestSeed(72));
  const std::vector<int32_t> prompt = RandomTokens(random, 150);
  const std::vector<int32_t> expected = TheOracle().Generate(prompt, Greedy(), 6);
  const auto ask = [&] {
    const DecodeResult result = Decode(channels_[0], Request(0, /*together=*/true, prompt, 6));
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, expected);
    return result.usage.cached_prompt_tokens();
  };
  Start(Options(), decode);
  EXPECT_EQ(workers_[0]->card().kv_tier_segment_tokens(), 32);
  EXPECT_EQ(ask(), 0);
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (Metric(0, "baton_kv_tier_segments_total", R"(operation="store")") < 8) {
    ASSERT_LT(absl::Now(), end);
  }
  ExpectIdle();
  Flush(0);
  EXPECT_EQ(ask(), 128);
  Start(Options(), decode);
  EXPECT_EQ(ask(), 128) << "from the files";
  ExpectIdle();
}

TEST_F(AnsweringWorkersTest, OneFetchesWhatTheOtherHasOfItsPrompt) {
  worker::WorkerOptions options = Options();
  options.kv_fetch = true;
  Start(options);
  std::mt19937 random(testing::TestSeed(73));
  std::vector<int32_t> prompt = RandomTokens(random, 160);
  ASSERT_TRUE(Decode(channels_[1], Request(1, /*together=*/true, prompt, 4)).status.ok());
  for (const int32_t token : RandomTokens(random, 50)) prompt.push_back(token);
  DecodeRequest request = Request(0, /*together=*/true, prompt, 8);
  request.mutable_kv_holder()->set_address(workers_[1]->address());
  request.mutable_kv_holder()->set_worker_id(workers_[1]->card().worker_id());
  request.mutable_kv_holder()->set_epoch(workers_[1]->card().epoch());
  request.set_kv_holder_tokens(160);
  const DecodeResult result = Decode(channels_[0], request);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 8));
  EXPECT_EQ(result.usage.cached_prompt_tokens(), 160);
  EXPECT_EQ(Metric(0, "baton_kv_fetches_total", R"(result="fetched")"), 1);
  EXPECT_EQ(Metric(1, "baton_kv_fetches_total", R"(result="fetched")"), 1);
  ExpectIdle();
}

}  // namespace
}  // namespace baton
