// Draws through DeviceSampler: however many requests share the device, and with that however many
// blocks share a request, each gets its token.
#include "common/backend/cuda/sampling/device_sampler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/backend/cuda/simt/simt.h"
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
  const int multiprocessors = runtime_->properties().multiprocessors;
  ASSERT_GT(SampleShapeFor(1, kSampledVocab, multiprocessors).blocks,
            SampleShapeFor(kRows, kSampledVocab, multiprocessors).blocks);
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
    LaunchSample(launch, static_cast<int>(requests.size()), {.blocks = 4, .launches = 3}, stream_);
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

// Logits as a model has them: whatever a request filters by, three launches read its row once each,
// and five for a large top_k. A row that the last block has to go through alone is read ten times.
TEST(SamplePassesTest, ALaunchReadsItsRowOnce) {
  constexpr int kVocab = 32'000;
  struct Case {
    float temperature = 0.8f, top_p = 1, min_p = 0;
    int top_k = 0, passes = 3;
    float spread = 2;
    bool penalizes = false;
  };
  std::mt19937_64 random(testing::TestSeed(8));
  for (const Case& one : std::vector<Case>{{.temperature = 0, .passes = 1},
                                           {.top_p = 0.95f},
                                           {},
                                           {.temperature = 2, .top_p = 0.999f, .spread = 0.5f},
                                           {.temperature = 1, .spread = 4},
                                           {.min_p = 0.02f},
                                           {.top_p = 0.95f, .min_p = 0.02f},
                                           {.top_p = 0.9f, .top_k = 50},
                                           {.temperature = 0.05f, .top_k = 1000},
                                           {.top_p = 0.95f, .top_k = 5000, .passes = 5},
                                           {.top_p = 0.95f, .penalizes = true}}) {
    std::normal_distribution<float> normal(-20, one.spread);
    std::vector<Vec16> memory(kVocab / 4);
    auto* const logits = reinterpret_cast<float*>(memory.data());
    for (int id = 0; id < kVocab; ++id) logits[id] = normal(random);
    const std::vector<int32_t> ids = {5, 7, kVocab - 1, 7};
    std::vector<Vec16> adjusted(kVocab / 4);
    std::vector<uint8_t> adjusted_quads(kVocab / 4);
    std::vector<uint32_t> seen(kVocab);
    SampleRequest request = {};
    request.workspace_row = one.penalizes ? 0 : -1;
    request.drawn_row = -1;
    request.temperature = one.temperature;
    request.top_p = one.top_p;
    request.min_p = one.min_p;
    request.top_k = one.top_k;
    request.repetition_penalty = 1.1f;
    request.token_count = one.penalizes ? static_cast<int>(ids.size()) : 0;
    request.seed = random();
    SampleResult result;
    std::vector<SampleScratch> scratch(1, SampleScratch{});
    SampleLaunch launch = {};
    launch.logits = logits;
    launch.logits_stride = launch.workspace_stride = kVocab;
    launch.vocab = kVocab;
    launch.requests = &request;
    launch.ids = ids.data();
    launch.adjusted = reinterpret_cast<float*>(adjusted.data());
    launch.adjusted_quads = adjusted_quads.data();
    launch.seen = seen.data();
    launch.results = &result;
    launch.scratch = scratch.data();
    emulated::Accesses accesses;
    accesses.watched_begin = logits;
    accesses.watched_end = logits + kVocab;
    const emulated::Options before = emulated::GetOptions();
    emulated::SetOptions({.accesses = &accesses});
    const int launches = SampleLaunches(one.temperature, one.top_k, kVocab);
    LaunchSample(launch, 1, {.blocks = 4, .threads = 128, .launches = launches}, nullptr);
    emulated::SetOptions(before);
    SCOPED_TRACE(::testing::Message()
                 << "temperature " << one.temperature << ", top_p " << one.top_p << ", min_p "
                 << one.min_p << ", top_k " << one.top_k << ", penalizes " << one.penalizes);
    EXPECT_EQ(result.kind, kSampledToken);
    EXPECT_EQ(launches, one.passes);
    // Quads that are changed are read for their copies instead.
    EXPECT_NEAR(static_cast<double>(accesses.watched_bytes) / sizeof(float) / kVocab, one.passes,
                one.penalizes ? 0.01 : 0);
  }
}

TEST(SampleShapeTest, BlocksFillTheMultiprocessors) {
  constexpr int kQwen = 151'936;
  EXPECT_EQ(SampleShapeFor(1, kQwen, 132).blocks, 38);  // 4,096 tokens each are enough
  EXPECT_EQ(SampleShapeFor(8, kQwen, 132).blocks, 33);
  EXPECT_EQ(SampleShapeFor(64, kQwen, 132).blocks, 4);
  EXPECT_EQ(SampleShapeFor(64, kQwen, 40).blocks, 2);
  EXPECT_EQ(SampleShapeFor(1000, kQwen, 132).blocks, 2);
  EXPECT_EQ(SampleShapeFor(1, 4096, 132).blocks, 1);
  EXPECT_EQ(SampleLaunches(0, 50, kQwen), 1);
  EXPECT_EQ(SampleLaunches(1, 1, kQwen), 1);
  EXPECT_EQ(SampleLaunches(1, 50, kQwen), 3);
  EXPECT_EQ(SampleLaunches(1, 5000, kQwen), 5);
  EXPECT_EQ(SampleLaunches(1, kQwen, kQwen), 3);
  EXPECT_EQ(SampleLaunches(1, -1, kQwen), 3);
}

}  // namespace
}  // namespace baton::backend::cuda
