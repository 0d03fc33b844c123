#include "tests/testing/paced_gpu.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/backend/cuda/simt/simt.h"
#include "common/base/error.h"
#include "common/engine/engine.h"
#include "tests/testing/waited_timer.h"

namespace baton::testing {
namespace {

using backend::cuda::Runtime;
using backend::cuda::Stream;

constexpr PacedGpuCosts kGpuCosts = {.kernel_us = 40,
                                     .node_us = 4,
                                     .copy_us = 5,
                                     .host_gb_s = 10,
                                     .peer_gb_s = 100,
                                     .memory_gb = 0.002};

TEST(PacedGpuFlagsTest, AreReadAndChecked) {
  PacedGpuCosts costs;
  const auto parses = [&](const std::string& line) {
    CLI::App app;
    AddPacedGpuFlags(app, costs);
    try {
      app.parse(line);
    } catch (const CLI::ParseError&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(parses("--device-gpu 40,4,5.5,12,100,0.5"));
  EXPECT_EQ(costs.kernel_us, 40);
  EXPECT_EQ(costs.node_us, 4);
  EXPECT_EQ(costs.copy_us, 5.5);
  EXPECT_EQ(costs.host_gb_s, 12);
  EXPECT_EQ(costs.peer_gb_s, 100);
  EXPECT_EQ(costs.memory_gb, 0.5);
  for (const char* wrong : {"", "--device-gpu 40,4,5,12,100", "--device-gpu 40,4,5,12,100,1,1",
                            "--device-gpu -1,4,5,12,100,1", "--device-gpu 40,4,5,0,100,1",
                            "--device-gpu 40,4,5,nan,100,1", "--device-gpu x,4,5,12,100,1"}) {
    EXPECT_FALSE(parses(wrong)) << wrong;
  }
}

class PacedGpuTest : public ::testing::Test {
 protected:
  struct Nothing {};
  static void Fail(Nothing) { FAIL() << "a paced GPU ran a kernel"; }
  static void LaunchOn(Stream stream) {
    backend::cuda::Launch(&Fail, {1, 1, 1}, 32, 0, stream, Nothing());
  }
  // From now until what the stream has is done.
  absl::Duration TimeLeft(Stream stream) {
    const absl::Duration begin = timer_.Now();
    runtime_->Synchronize(stream);
    return timer_.Now() - begin;
  }

  WaitedTimer timer_;
  const std::unique_ptr<Runtime> runtime_ = MakePacedRuntime(kGpuCosts, timer_);
};

TEST_F(PacedGpuTest, KernelsTakeTheirTimeOnAStreamOneAfterTheOther) {
  const Stream stream = runtime_->MakeStream(), other = runtime_->MakeUrgentStream();
  LaunchOn(stream);
  const auto first = runtime_->Record(stream);
  LaunchOn(stream);
  const auto second = runtime_->Record(stream);
  LaunchOn(other);
  EXPECT_EQ(TimeLeft(other), absl::Microseconds(5)) << "beside the other stream's";
  EXPECT_FALSE(first->Done());
  EXPECT_EQ(TimeLeft(stream), absl::Microseconds(75));
  EXPECT_TRUE(first->Done());
  EXPECT_TRUE(second->Done());
  timer_.WaitUntil(timer_.Now() + absl::Seconds(1));
  LaunchOn(stream);
  EXPECT_EQ(TimeLeft(stream), absl::Microseconds(40)) << "idle time does not count";
}

TEST_F(PacedGpuTest, AGraphTakesTheTimeOfItsNodes) {
  const Stream stream = runtime_->MakeStream();
  const auto graph = runtime_->Capture(stream, [&] {
    for (int i = 0; i < 7; ++i) LaunchOn(stream);
  });
  EXPECT_EQ(TimeLeft(stream), absl::ZeroDuration());
  ASSERT_TRUE(graph->Launch(stream));
  EXPECT_EQ(TimeLeft(stream), absl::Microseconds(28));
}

TEST_F(PacedGpuTest, CopiesTakeTheTimeOfTheirBytesAndMoveFewOfThem) {
  constexpr size_t kFew = 1000, kMany = 100'000;
  auto* const device = static_cast<char*>(*runtime_->AllocateDevice(kMany));
  auto* const pinned = static_cast<char*>(*runtime_->AllocatePinned(kMany));
  const Stream stream = runtime_->MakeStream();
  std::memset(pinned, 7, kMany);
  runtime_->CopyToDevice(device, pinned, kFew, stream);
  EXPECT_EQ(TimeLeft(stream), absl::Nanoseconds(5100));
  EXPECT_EQ(device[kFew - 1], 7);
  runtime_->CopyToDevice(device, pinned, kMany, stream);
  EXPECT_EQ(TimeLeft(stream), absl::Nanoseconds(15'000));
  EXPECT_EQ(device[kMany - 1], 0);
  std::memset(pinned, 8, kMany);
  runtime_->CopyToHost(pinned, device, kFew, stream);
  EXPECT_EQ(pinned[kFew - 1], 7);
  EXPECT_EQ(pinned[kFew], 8);
}

TEST_F(PacedGpuTest, AnotherDevicesMemoryIsOpenedAndCopied) {
  constexpr size_t kBytes = 4000;
  const auto exporter = MakePacedRuntime(kGpuCosts, timer_);
  auto* const exported = static_cast<char*>(*exporter->AllocateDevice(kBytes));
  std::memset(exported, 9, kBytes);
  const auto handle = exporter->ExportMemory(exported);
  ASSERT_TRUE(handle.ok()) << handle.status();
  const auto opened = runtime_->OpenPeerMemory(*handle, exporter->properties().uuid, kBytes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  auto* const own = static_cast<char*>(*runtime_->AllocateDevice(kBytes));
  const Stream stream = runtime_->MakeStream();
  ASSERT_TRUE(runtime_->CopyFromPeer(own, *opened, kBytes, kBytes, 1, stream).ok());
  const absl::Duration begin = timer_.Now();
  const absl::Status late = runtime_->AwaitPeerCopies(stream, absl::Microseconds(5));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_EQ(timer_.Now() - begin, absl::Microseconds(5));
  EXPECT_TRUE(runtime_->AwaitPeerCopies(stream, absl::InfiniteDuration()).ok());
  EXPECT_EQ(timer_.Now() - begin, absl::Nanoseconds(5040)) << "and 4,000 bytes at 100 GB/s";
  EXPECT_EQ(own[kBytes - 1], 9);
  runtime_->ClosePeerMemory(*opened);
}

// A prompt of the demo model, and a token behind it that a recorded step decodes.
TEST(PacedGpuEngineTest, PromptsTakeTheTimeOfTheirKernelsAndDrawTokenZero) {
  WaitedTimer timer;
  PacedGpuCosts costs = kGpuCosts;
  costs.memory_gb = 0.2;
  engine::EngineOptions options;
  options.model_dir = "models/demo";
  options.num_blocks = 64;
  options.max_num_batched_tokens = 512;
  options.make_backend = PacedGpuMaker(costs, timer);
  auto engine = engine::Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<int32_t> blocks;
  for (int block = 0; block < 64; ++block) blocks.push_back(block);
  model::SamplingParams greedy;
  greedy.temperature = 0;
  const auto step = [&](std::vector<int32_t> tokens, int context) {
    engine::Batch batch;
    engine::BatchEntry& entry = batch.entries.emplace_back();
    entry.tokens = std::move(tokens);
    entry.context = context;
    entry.blocks = blocks;
    entry.sample = true;
    entry.sampling = &greedy;
    const absl::Duration begin = timer.Now();
    const auto results = (*engine)->Step(batch, nullptr);
    EXPECT_EQ(results[0].tokens->front().token_id, 0);
    return timer.Now() - begin;
  };
  const absl::Duration prompt = step(std::vector<int32_t>(300, 7), 0);
  EXPECT_EQ(step(std::vector<int32_t>(300, 7), 0), prompt);
  // Each of four layers has at least a norm, three products, attention, its write, and a gate.
  EXPECT_GE(prompt, 4 * 7 * absl::Microseconds(40));
  step({7}, 300);
  const absl::Duration decoded = step({7}, 301);
  EXPECT_GT(decoded, absl::ZeroDuration());
  EXPECT_LT(decoded, prompt / 4) << "it was not recorded";
}

}  // namespace
}  // namespace baton::testing
