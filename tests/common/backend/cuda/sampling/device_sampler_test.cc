// Draws through DeviceSampler: however many requests share the device, and with that however many
// blocks share a request, each gets its token.
#include "common/backend/cuda/sampling/device_sampler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/model/sampler.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

constexpr int kSampledVocab = 12'300;  // enough for several blocks
constexpr int kRows = 5;

class DeviceSamplerTest : public ::testing::Test {
 protected:
  DeviceSamplerTest() {
    StepLimits limits;
    limits.max_logit_rows = kRows;
    limits.max_positions = 64;
    limits.vocab_size = kSampledVocab;
    stream_ = runtime_->MakeStream();
    size_ = DeviceSampler::DeviceBytes(limits);
    const auto device = runtime_->AllocateDevice(size_);
    runtime_->Zero(*device, size_, stream_);
    sampler_ = *DeviceSampler::Make(limits, *device, *runtime_, stream_);
    logits_.resize(size_t{kRows} * kStride);
    std::normal_distribution<float> normal(-2, 3);
    for (float& logit : logits_) logit = normal(random_);
  }

  std::vector<SampleOutcome> Draw(absl::Span<const SampleRow> rows) {
    Tensor tensor;
    tensor.data = logits_.data();
    tensor.dtype = DType::kF32;
    tensor.rows = kRows;
    tensor.cols = tensor.row_stride = kStride;
    sampler_->Enqueue(tensor, kSampledVocab, rows, nullptr);
    std::vector<SampleOutcome> outcomes(rows.size());
    sampler_->Collect(absl::MakeSpan(outcomes));
    return outcomes;
  }
  int32_t Expected(const SampleRow& row) {
    model::SamplingParams params;
    params.temperature = row.temperature;
    params.top_p = row.top_p;
    params.min_p = row.min_p;
    params.top_k = row.top_k;
    params.seed = row.seed;
    const absl::Span<const float> logits(logits_.data() + row.logit_row * kStride, kSampledVocab);
    return model::SampleMany(logits, params, {.suppressed = row.suppressed}, row.position, 1)
        ->front()
        .token_id;
  }

  static constexpr int kStride = (kSampledVocab + 7) / 8 * 8;
  std::mt19937_64 random_{testing::TestSeed(7)};
  std::unique_ptr<Runtime> runtime_ = MakeEmulatedRuntime(80, size_t{64} << 20, 3);
  Stream stream_;
  size_t size_;
  std::unique_ptr<DeviceSampler> sampler_;
  std::vector<float> logits_;
};

TEST_F(DeviceSamplerTest, TokensDoNotDependOnTheBatch) {
  ASSERT_GT(SampleShapeFor(1, kSampledVocab, runtime_->properties().multiprocessors).blocks, 1);
  ASSERT_EQ(SampleShapeFor(kRows, kSampledVocab, runtime_->properties().multiprocessors).blocks, 1);
  const std::vector<int32_t> suppressed = {1, 12'299};
  std::vector<SampleRow> rows(kRows);
  for (int i = 0; i < kRows; ++i) {
    rows[static_cast<size_t>(i)].logit_row = i;
    rows[static_cast<size_t>(i)].seed = random_();
  }
  rows[0].temperature = 0;
  rows[1].top_k = 40;
  rows[1].top_p = 0.9f;
  rows[2].top_p = 0.95f;
  rows[3].min_p = 0.01f;
  rows[4].temperature = 2;
  rows[4].suppressed = suppressed;
  for (int step = 0; step < 3; ++step) {
    const std::vector<SampleOutcome> together = Draw(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const SampleOutcome alone = Draw({&rows[i], 1}).front();
      ASSERT_EQ(alone.kind, SampleOutcome::Kind::kToken);
      ASSERT_EQ(alone.token_id, Expected(rows[i])) << "row " << i << ", step " << step;
      ASSERT_EQ(together[i].kind, SampleOutcome::Kind::kToken);
      ASSERT_EQ(together[i].token_id, alone.token_id) << "row " << i << ", step " << step;
      ++rows[i].position;
    }
  }
}

// What a launch leaves behind is what the next begins with: a graph of them can be run again.
TEST_F(DeviceSamplerTest, LaunchesCanBeRecorded) {
  std::vector<SampleRequest> requests(3);
  for (size_t i = 0; i < requests.size(); ++i) {
    SampleRequest& request = requests[i];
    request.logit_row = static_cast<int>(i);
    request.workspace_row = request.drawn_row = -1;
    request.temperature = i == 0 ? 0 : 1;
    request.top_p = 0.9f;
    request.top_k = i == 1 ? 20 : 0;
  }
  std::vector<SampleScratch> scratch(requests.size(), SampleScratch{});
  std::vector<SampleResult> results(requests.size());
  SampleLaunch launch = {};
  launch.logits = logits_.data();
  launch.logits_stride = kStride;
  launch.vocab = kSampledVocab;
  launch.requests = requests.data();
  launch.scratch = scratch.data();
  launch.results = results.data();
  const std::unique_ptr<Graph> graph = runtime_->Capture(stream_, [&] {
    LaunchSample(launch, static_cast<int>(requests.size()), {.blocks = 4}, stream_);
  });
  for (uint64_t position = 0; position < 4; ++position) {
    for (SampleRequest& request : requests) request.position = position;
    ASSERT_TRUE(graph->Launch(stream_));
    for (size_t i = 0; i < requests.size(); ++i) {
      SampleRow row;
      row.logit_row = requests[i].logit_row;
      row.temperature = requests[i].temperature;
      row.top_p = requests[i].top_p;
      row.top_k = requests[i].top_k;
      row.position = position;
      ASSERT_EQ(results[i].kind, kSampledToken);
      ASSERT_EQ(results[i].token_id, Expected(row)) << "row " << i << ", position " << position;
    }
  }
}

TEST(SampleShapeTest, IdleMultiprocessorsHelp) {
  constexpr int kQwen = 151'936;
  EXPECT_EQ(SampleShapeFor(1, kQwen, 132).blocks, 38);  // 4,096 tokens each are enough
  EXPECT_EQ(SampleShapeFor(8, kQwen, 132).blocks, 16);
  EXPECT_EQ(SampleShapeFor(64, kQwen, 132).blocks, 2);
  EXPECT_EQ(SampleShapeFor(65, kQwen, 400).blocks, 1);  // there is no scratch for so many
  EXPECT_EQ(SampleShapeFor(41, kQwen, 40).blocks, 1);
  EXPECT_EQ(SampleShapeFor(1, 4096, 132).blocks, 1);
  EXPECT_EQ(SampleLaunches(0, 50, kQwen), 1);
  EXPECT_EQ(SampleLaunches(1, 1, kQwen), 1);
  EXPECT_EQ(SampleLaunches(1, 50, kQwen), 2);
  EXPECT_EQ(SampleLaunches(1, kQwen, kQwen), 3);
  EXPECT_EQ(SampleLaunches(1, -1, kQwen), 3);
}

}  // namespace
}  // namespace baton::backend::cuda
