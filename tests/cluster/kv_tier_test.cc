// KV tiers under real workers: the oracle's tokens, whatever becomes of the tiers, and hits that
// survive restarts.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cluster/worker_pair.h"
#include "tests/common/kv_store/redis_server.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

class KvTierTest : public WorkerPairTest {
 protected:
  // A prefill worker with the tiers, and a decode worker.
  void Start(const std::string& tiers, const std::string& dtype = "auto",
             const std::string& model_dir = ModelDir()) {
    decode_.reset();
    prefill_.reset();
    worker::WorkerOptions options = Options();
    options.kv_cache_dtype = dtype;
    // Where activations are bfloat16, it would be what auto is.
    if (dtype == "bfloat16") options.dtype = "float32";
    options.model_dir = model_dir;
    prefill_worker::PrefillOptions prefill_only;
    prefill_only.tiers.tiers = tiers;
    prefill_only.tiers.segment = 32;
    prefill_only.tiers.least_uses = 1;
    auto prefill = prefill_worker::PrefillWorker::Start(options, prefill_only);
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    prefill_ = *std::move(prefill);
    auto decode = decode_worker::DecodeWorker::Start(options, NothingLocal());
    ASSERT_TRUE(decode.ok()) << decode.status();
    decode_ = *std::move(decode);
    channel_ = MakeChannel(decode_->address());
  }
  std::string FileTier() const { return absl::StrCat("file:", directory_.path(), ":64MB"); }

  // The answer must be the oracle's. Returns the prompt tokens that the prefill worker had.
  int Ask(const std::vector<int32_t>& prompt, testing::Oracle& oracle = TheOracle()) {
    // The decode worker's own cache would hide what the prefill worker has.
    Flush(*decode_);
    const DecodeResult result = Decode(channel_, Request(prompt, Greedy(), 6));
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, oracle.Generate(prompt, Greedy(), 6));
    return result.usage.cached_prompt_tokens();
  }
  void Flush(const worker::Worker& worker) {
    auto stub = internal::v1::WorkerService::NewStub(MakeChannel(worker.address()));
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    internal::v1::FlushCacheRequest request;
    request.set_epoch(worker.card().epoch());
    internal::v1::FlushCacheResponse response;
    ASSERT_TRUE(stub->FlushCache(&context, request, &response).ok());
  }
  // Until so many segments have been stored by this worker, in all tiers together.
  void AwaitStored(int segments) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (Metric("baton_kv_tier_segments_total", "operation=\"store\"") < segments) {
      ASSERT_LT(absl::Now(), end) << Metric("baton_kv_tier_segments_total", "operation=\"store\"");
    }
    ExpectIdle();
  }
  double Metric(const std::string& name, const std::string& label) {
    return testing::MetricSum(prefill_->metrics_address(), name, label);
  }
  std::vector<int32_t> Prompt(int tokens) { return RandomTokens(random_, tokens); }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path())) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  }

  kv_store::TemporaryDirectory directory_;
  const uint32_t seed_ = testing::TestSeed();
  std::mt19937 random_{seed_};
};

TEST_F(KvTierTest, FilesOutliveTheWorker) {
  SCOPED_TRACE(seed_);
  const std::vector<int32_t> prompt = Prompt(150);
  Start("host:64MB," + FileTier());
  EXPECT_EQ(Ask(prompt), 0);
  AwaitStored(8);  // four segments, in both tiers
  Flush(*prefill_);
  EXPECT_EQ(Ask(prompt), 128);
  EXPECT_EQ(Metric("baton_kv_tier_segments_total", "operation=\"load\""), 4);
  Start("host:64MB," + FileTier());
  EXPECT_EQ(Ask(prompt), 128);
  std::vector<int32_t> other = prompt;
  other[70] ^= 1;
  EXPECT_EQ(Ask(other), 64);  // in the pool by now
  ExpectIdle();
}

TEST_F(KvTierTest, EachFormatHasItsOwnSegments) {
  SCOPED_TRACE(seed_);
  const std::vector<int32_t> prompt = Prompt(100);
  for (const std::string dtype : {"auto", "bfloat16", "int8", "int4", "fp8"}) {
    SCOPED_TRACE(dtype);
    engine::EngineOptions options = testing::Oracle::OptionsFor(ModelDir(), {});
    if (dtype == "bfloat16") options.backend.compute = backend::BackendOptions::Compute::kF32;
    options.kv_dtype = kv::ParseKvDtype(dtype);
    testing::Oracle oracle(options);
    Start(FileTier(), dtype);
    EXPECT_EQ(Ask(prompt, oracle), 0);
    AwaitStored(3);
    Flush(*prefill_);
    EXPECT_EQ(Ask(prompt, oracle), 96);
  }
  EXPECT_EQ(Files().size(), 5u * 3);
}

TEST_F(KvTierTest, SpoiledFilesAreComputedAgain) {
  SCOPED_TRACE(seed_);
  const std::vector<int32_t> prompt = Prompt(150);
  Start(FileTier());
  Ask(prompt);
  AwaitStored(4);
  std::vector<fs::path> files = Files();
  ASSERT_EQ(files.size(), 4u);
  const auto ask_anew = [&] {
    Flush(*prefill_);
    Ask(prompt);
    ExpectIdle();
  };
  for (int i = 0; i < 20; ++i) {
    const fs::path& file = files[random_() % files.size()];
    if (!fs::exists(file)) {
      ask_anew();  // stores it again
      continue;
    }
    switch (random_() % 3) {
      case 0: {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        const auto at = static_cast<std::streamoff>(random_() % fs::file_size(file));
        stream.seekg(at);
        const char flipped = static_cast<char>(stream.get() ^ (1 << random_() % 8));
        stream.seekp(at);
        stream.put(flipped);
        break;
      }
      case 1:
        fs::resize_file(file, random_() % fs::file_size(file));
        break;
      default: {  // another segment's, whole
        const fs::path& other = files[random_() % files.size()];
        if (other == file || !fs::exists(other)) break;
        fs::copy_file(other, file, fs::copy_options::overwrite_existing);
      }
    }
    ask_anew();
  }
}

TEST_F(KvTierTest, RedisWarmsAWorkerThatNeverComputedThePrefix) {
  SCOPED_TRACE(seed_);
  signal(SIGPIPE, SIG_IGN);  // as the worker's main
  auto redis = std::make_unique<kv_store::RedisServer>();
  const std::string tier = absl::StrCat("redis:127.0.0.1:", redis->port());
  const std::vector<int32_t> prompt = Prompt(150);
  Start(tier);
  EXPECT_EQ(Ask(prompt), 0);
  AwaitStored(4);
  auto first = std::move(prefill_);
  Start(tier);  // another worker, while the first one lives
  EXPECT_EQ(Ask(prompt), 128);
  // The server stops, dies, comes back empty: answers go on.
  redis->Signal(SIGSTOP);
  Flush(*prefill_);
  Ask(prompt);
  Ask(Prompt(150));
  redis->Kill();
  Flush(*prefill_);
  Ask(prompt);
  Ask(Prompt(150));
  ExpectIdle();
}

}  // namespace
}  // namespace baton
