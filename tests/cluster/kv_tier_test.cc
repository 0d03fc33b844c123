// KV tiers under real workers: the oracle's tokens, whatever becomes of the tiers, and hits that
// survive restarts. Of a recurrent model (BATON_TEST_CHECKPOINT), states too.
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
#include "tests/testing/child_process.h"
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
    options.max_snapshot_share = snapshot_share_;
    options.kv_cache_dtype = dtype;
    // Where activations are bfloat16, it would be what auto is.
    if (dtype == "bfloat16") options.dtype = "float32";
    options.model_dir = model_dir;
    StartPrefill(tiers, options);
    StartDecode(options);
  }
  void StartPrefill(const std::string& tiers, const worker::WorkerOptions& options) {
    prefill_worker::PrefillOptions prefill_only;
    prefill_only.tiers.tiers = tiers;
    prefill_only.tiers.segment = kSegment;
    prefill_only.tiers.least_uses = 1;
    auto prefill = prefill_worker::PrefillWorker::Start(options, prefill_only);
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    prefill_ = *std::move(prefill);
  }
  void StartDecode(const worker::WorkerOptions& options) {
    auto decode = decode_worker::DecodeWorker::Start(options, NothingLocal());
    ASSERT_TRUE(decode.ok()) << decode.status();
    decode_ = *std::move(decode);
    channel_ = MakeChannel(decode_->address());
  }
  std::string FileTier() const { return absl::StrCat("file:", directory_.path(), ":64MB"); }

  // The answer must be the oracle's. Returns the prompt tokens that the prefill worker had.
  int Ask(const std::vector<int32_t>& prompt, testing::Oracle& oracle = TheOracle()) {
    return AskAt(*prefill_, prompt, oracle);
  }
  template <class PrefillWorker>
  int AskAt(const PrefillWorker& prefill, const std::vector<int32_t>& prompt,
            testing::Oracle& oracle = TheOracle()) {
    // The decode worker's own cache would hide what the prefill worker has.
    Flush(*decode_);
    const DecodeResult result =
        Decode(channel_, MakeDecodeRequest(prefill, *decode_, prompt, Greedy(), 6));
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
  bool recurrent() const { return decode_->card().block_shape().recurrent(); }
  // What a tier has of a prompt that was computed in one piece: its segments and, with recurrent
  // layers, the states behind those that end with a chunk of 64 tokens or are the last.
  int Values(int tokens) const {
    const int segments = tokens / kSegment;
    return segments + (recurrent() ? (segments + 1) / 2 : 0);
  }
  // Until so many values have been stored by this worker, in all tiers together.
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

  static constexpr int kSegment = 32;
  double snapshot_share_ = 0.5;
  kv_store::TemporaryDirectory directory_;
  const uint32_t seed_ = testing::TestSeed();
  std::mt19937 random_{seed_};
};

TEST_F(KvTierTest, FilesOutliveTheWorker) {
  SCOPED_TRACE(seed_);
  const std::vector<int32_t> prompt = Prompt(150);
  Start("host:64MB," + FileTier());
  EXPECT_EQ(Ask(prompt), 0);
  AwaitStored(2 * Values(150));  // four segments, in both tiers
  Flush(*prefill_);
  EXPECT_EQ(Ask(prompt), 128);
  EXPECT_EQ(Metric("baton_kv_tier_segments_total", "operation=\"load\""),
            4 + (recurrent() ? 1 : 0));
  Start("host:64MB," + FileTier());
  EXPECT_EQ(Ask(prompt), 128);
  std::vector<int32_t> other = prompt;
  other[70] ^= 1;
  EXPECT_EQ(Ask(other), 64);  // in the pool by now, a state in the tiers alone
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
    AwaitStored(Values(100));
    Flush(*prefill_);
    EXPECT_EQ(Ask(prompt, oracle), 96);
  }
  EXPECT_EQ(Files().size(), 5u * static_cast<size_t>(Values(100)));
}

TEST_F(KvTierTest, SpoiledFilesAreComputedAgain) {
  SCOPED_TRACE(seed_);
  const std::vector<int32_t> prompt = Prompt(150);
  Start(FileTier());
  Ask(prompt);
  AwaitStored(Values(150));
  std::vector<fs::path> files = Files();
  ASSERT_EQ(files.size(), static_cast<size_t>(Values(150)));
  const auto ask_anew = [&] {
    Flush(*prefill_);
    Ask(prompt);
    ExpectIdle();
  };
  for (int i = 0; i < 20; ++i) {
    const fs::path& file = files[random_() % files.size()];
    if (!fs::exists(file) || fs::file_size(file) == 0) {
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

// More conversations than there are snapshots in the pool. There are so few steps that the worker
// does not know how long they take: it gives up no load because computing is faster.
TEST_F(KvTierTest, SnapshotsThatThePoolHadToDropComeFromTheTier) {
  SCOPED_TRACE(seed_);
  snapshot_share_ = 0;  // two
  Start("host:64MB");
  std::vector<std::vector<int32_t>> conversations;
  for (int i = 0; i < 3; ++i) conversations.push_back(Prompt(70));
  for (int turn = 0; turn < 2; ++turn) {
    for (std::vector<int32_t>& conversation : conversations) {
      const int cached = Ask(conversation);
      ExpectIdle();
      if (turn > 0) {
        EXPECT_GE(cached, (static_cast<int>(conversation.size()) - 40) / kSegment * kSegment);
        EXPECT_EQ(Metric("baton_kv_tier_lookups_total", "result=\"slower\""), 0);
      }
      const std::vector<int32_t> next = Prompt(40);
      conversation.insert(conversation.end(), next.begin(), next.end());
    }
  }
  EXPECT_EQ(Metric("baton_kv_tier_lookups_total", "result=\"loaded\"") > 0, recurrent());
}

TEST_F(KvTierTest, ThePrefillWorkerOfAnotherProcess) {
  testing::ParentEnd parent;
  if (!parent) GTEST_SKIP() << "a part of another test";
  StartPrefill(parent.argument(), Options());
  parent.SendText(prefill_->address());
  parent.SendText(prefill_->card().SerializeAsString());
  std::string nothing;
  parent.ReceiveText(&nothing);  // until it is killed
}

class KilledWorker {
 public:
  explicit KilledWorker(const std::string& tiers)
      : process_("KvTierTest.ThePrefillWorkerOfAnotherProcess", tiers) {
    std::string card;
    started_ = process_.ReceiveText(&address_) && process_.ReceiveText(&card) &&
               card_.ParseFromString(card);
  }
  bool started() const { return started_; }
  const std::string& address() const { return address_; }
  const internal::v1::WorkerCard& card() const { return card_; }
  void Kill() {
    process_.Kill(SIGKILL);
    process_.Wait();
  }

 private:
  testing::ChildProcess process_;
  std::string address_;
  internal::v1::WorkerCard card_;
  bool started_ = false;
};

// At any moment, also while it writes.
TEST_F(KvTierTest, FilesOutliveAWorkerThatIsKilled) {
  SCOPED_TRACE(seed_);
  StartDecode(Options());
  const std::vector<int32_t> first = Prompt(150);
  for (int round = 0; round < 4; ++round) {
    KilledWorker prefill(FileTier());
    ASSERT_TRUE(prefill.started());
    EXPECT_EQ(AskAt(prefill, first), round == 0 ? 0 : 128);
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (Files().size() < static_cast<size_t>(Values(150))) ASSERT_LT(absl::Now(), end);
    for (int i = 0; i < 3; ++i) AskAt(prefill, Prompt(40 + static_cast<int>(random_() % 150)));
    absl::SleepFor(absl::Microseconds(random_() % 3000));
    prefill.Kill();
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
  AwaitStored(Values(150));
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
