// An engine on a device that does what it is told when it is waited for, and not before.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "common/backend/cuda/cuda_backend.h"
#include "common/engine/engine.h"
#include "tests/common/backend/cuda/delayed_runtime.h"
#include "tests/common/engine/run_ahead.h"
#include "tests/testing/seed.h"

namespace baton::engine {
namespace {

constexpr char kTinyModel[] = BATON_CHECKPOINT_DIR "/tiny-qwen2";

// What the engine promises to those who move KV beside the compute stream, on a device that does
// nothing before it must.
class EngineAsynchronyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.model_dir = kTinyModel;
    options.max_num_batched_tokens = 32;
    options.max_num_seqs = 2;
    options.max_model_len = 64;
    options.num_blocks = 8;
    options.make_backend = [](const backend::BackendOptions& given) {
      return backend::cuda::MakeBackendOn(
          std::make_unique<backend::cuda::DelayedRuntime>(80, size_t{96} << 20), nullptr, given);
    };
    auto engine = Engine::Load(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  size_t chunk_bytes() const { return engine_->kv_layout().ChunkBytes(); }
  // Of layer 0, as a transfer reads it: what was written long ago.
  std::vector<std::byte> Copied(kv::BlockId block) const {
    std::vector<std::byte> chunk(chunk_bytes());
    engine_->kv_pool().copier->Read({0}, {block}, nullptr, chunk.data());
    return chunk;
  }

  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineAsynchronyTest, TheCopierFindsWhatWritePagesWrote) {
  const std::vector<std::byte> block(engine_->kv_layout().BlockBytes(), std::byte{0x37});
  const std::vector<kv::BlockId> blocks = {5};
  engine_->WritePages(blocks, block.data());
  EXPECT_EQ(Copied(5), std::vector<std::byte>(chunk_bytes(), std::byte{0x37}));
}

TEST_F(EngineAsynchronyTest, TheCopierMayOverwriteWhatCopyPagesHasCopied) {
  const std::vector<std::byte> chunk(chunk_bytes(), std::byte{0x11});
  const std::vector<std::byte> other(chunk_bytes(), std::byte{0x22});
  backend::KvCopier& copier = *engine_->kv_pool().copier;
  copier.Write({0}, {3}, chunk.data());
  const std::vector<kv::BlockId> sources = {3}, targets = {6};
  engine_->CopyPages(sources, targets);
  copier.Write({0}, {3}, other.data());
  std::vector<std::byte> host(engine_->kv_layout().BlockBytes());
  engine_->ReadPages(targets, host.data());  // behind all that the compute stream has
  host.resize(chunk_bytes());
  EXPECT_EQ(host, chunk);
}

// On a device that does nothing before somebody waits; what it repeats is what was asked.
TEST(EngineRunAheadTest, OfALazyDeviceThatRepeatsItsSteps) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  RunAhead run(seed);
  backend::cuda::DelayedRuntime* runtime = nullptr;
  const std::unique_ptr<Engine> engine =
      LoadForRunningAhead([&](const backend::BackendOptions& given) {
        auto lazy = std::make_unique<backend::cuda::DelayedRuntime>(80, size_t{96} << 20);
        runtime = lazy.get();
        return backend::cuda::MakeBackendOn(std::move(lazy), nullptr, given);
      });
  std::vector<Request> requests = run.AnyRequests(*engine, 3);
  requests.resize(1);
  requests[0].tokens = {5, 6, 7};
  requests[0].prompt_tokens = 3;
  requests[0].answer_tokens = 6;
  requests[0].blocks = {3, 9};
  ASSERT_EQ(RunAhead::Ahead(*engine, requests), RunAhead::OneByOne(*engine, requests));
  // Of 10 decode steps of one row the first is enqueued kernel by kernel.
  EXPECT_EQ(runtime->graphs(), 1);
  EXPECT_EQ(runtime->graph_launches(), 9);
  // Of a layer: q·k·v with its norm, attention with its rotation and write of KV, the output
  // product with its sum, gate and up with their norm, the down product with its sum; and
  // embedding, the last norm, logits.
  constexpr int kLayers = 3;
  EXPECT_EQ(runtime->graph_nodes(), kLayers * 5 + 3);
  // The copy engine, in which blocks of KV may wait, has no part in a step.
  const int copies = runtime->copies_to_device();
  RunAhead::Ahead(*engine, requests);
  EXPECT_EQ(runtime->copies_to_device(), copies);
}

// Steps that are repeated fetch the experts that this step's rows choose.
TEST(EngineRunAheadTest, ExpertsInTheHostsMemoryGiveTheSameTokens) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  for (const char* model : {"tiny-qwen3-moe", "tiny-qwen3-moe-gptq4"}) {
    SCOPED_TRACE(model);
    RunAhead run(seed);
    backend::cuda::DelayedRuntime* runtime = nullptr;
    const auto load = [&](int experts_on_host) {
      return LoadForRunningAhead(
          [&](const backend::BackendOptions& given) {
            auto lazy = std::make_unique<backend::cuda::DelayedRuntime>(80, size_t{96} << 20);
            runtime = lazy.get();
            return backend::cuda::MakeBackendOn(std::move(lazy), nullptr, given);
          },
          /*warm_up=*/false, model, experts_on_host);
    };
    const std::unique_ptr<Engine> engine = load(0);
    const std::vector<Request> requests = run.AnyRequests(*engine, 6);
    const auto expected = RunAhead::OneByOne(*engine, requests);
    for (const int layers : {1, 1000}) {
      const std::unique_ptr<Engine> with = load(layers);
      EXPECT_THAT(with->Description(), ::testing::HasSubstr("in the host's memory"));
      EXPECT_NE(with->DeviceKind(), engine->DeviceKind()) << "its steps take longer";
      EXPECT_EQ(with->kv_layout().Fingerprint(), engine->kv_layout().Fingerprint());
      ASSERT_EQ(RunAhead::OneByOne(*with, requests), expected) << layers << " layers";
      ASSERT_EQ(RunAhead::Ahead(*with, requests), expected) << layers << " layers";
    }
  }
}

TEST(EngineRunAheadTest, WithoutMemoryForGraphsStepsAreEnqueuedOneByOne) {
  RunAhead run(5);
  backend::cuda::DelayedRuntime* runtime = nullptr;
  const std::unique_ptr<Engine> engine =
      LoadForRunningAhead([&](const backend::BackendOptions& given) {
        auto lazy = std::make_unique<backend::cuda::DelayedRuntime>(80, size_t{96} << 20);
        runtime = lazy.get();
        runtime->AllowGraphs(1);
        return backend::cuda::MakeBackendOn(std::move(lazy), nullptr, given);
      });
  std::vector<Request> requests;
  while (requests.size() < 3) requests = run.AnyRequests(*engine, 6);
  ASSERT_EQ(RunAhead::Ahead(*engine, requests), RunAhead::OneByOne(*engine, requests));
  EXPECT_EQ(runtime->graphs(), 1);
}

TEST(EngineRunAheadTest, AGraphThatFindsNoMemoryIsEnqueuedKernelByKernel) {
  RunAhead run(6);
  backend::cuda::DelayedRuntime* runtime = nullptr;
  const std::unique_ptr<Engine> engine =
      LoadForRunningAhead([&](const backend::BackendOptions& given) {
        auto lazy = std::make_unique<backend::cuda::DelayedRuntime>(80, size_t{96} << 20);
        runtime = lazy.get();
        runtime->AllowGraphLaunches(3);
        return backend::cuda::MakeBackendOn(std::move(lazy), nullptr, given);
      });
  std::vector<Request> requests;
  while (requests.size() < 3) requests = run.AnyRequests(*engine, 6);
  ASSERT_EQ(RunAhead::Ahead(*engine, requests), RunAhead::OneByOne(*engine, requests));
  EXPECT_GT(runtime->graph_launches(), 3) << "none was refused";
}

TEST(EngineRunAheadTest, AWarmDeviceHasNothingLeftToRecord) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  RunAhead run(seed);
  backend::cuda::DelayedRuntime* runtime = nullptr;
  const auto load = [&](bool warm_up) {
    return LoadForRunningAhead(
        [&](const backend::BackendOptions& given) {
          auto lazy = std::make_unique<backend::cuda::DelayedRuntime>(80, size_t{96} << 20);
          runtime = lazy.get();
          return backend::cuda::MakeBackendOn(std::move(lazy), nullptr, given);
        },
        warm_up);
  };
  const std::unique_ptr<Engine> cold = load(false);
  const std::unique_ptr<Engine> warm = load(true);
  const int graphs = runtime->graphs();
  EXPECT_GE(graphs, 4) << "1, 2, 4 and 6 rows";
  for (int round = 0; round < 3; ++round) {
    const std::vector<Request> requests = run.AnyRequests(*warm, 4);
    ASSERT_EQ(RunAhead::Ahead(*warm, requests), RunAhead::OneByOne(*cold, requests));
  }
  EXPECT_EQ(runtime->graphs(), graphs);
}

}  // namespace
}  // namespace baton::engine
