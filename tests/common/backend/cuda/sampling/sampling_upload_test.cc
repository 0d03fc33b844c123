#include "common/backend/cuda/sampling/sampling_upload.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace baton::backend::cuda {
namespace {

constexpr SamplingCapacity kMuchRoom = {.bytes = 1 << 20, .workspace_rows = 100};

struct Packed {
  std::vector<Vec16> memory;
  SampleLaunch launch = {};
};

Packed Unpack(const SamplingUpload& upload) {
  Packed packed;
  packed.memory.resize(upload.bytes().size() / 16 + 1);
  auto* device = reinterpret_cast<std::byte*>(packed.memory.data());
  std::copy(upload.bytes().begin(), upload.bytes().end(), device);
  upload.PointTo(device, packed.launch);
  return packed;
}

TEST(SamplingUploadTest, EverythingArrives) {
  const std::vector<int32_t> tokens = {7, 8, 9, -1}, suppressed = {3, 4}, drafts = {11, 7};
  const std::vector<std::pair<int32_t, float>> biases = {{1, 0.5f}, {6, -2}};
  std::vector<SampleRow> rows(3);
  rows[0].tokens = tokens;  // ignored without penalties
  rows[0].prompt_tokens = 4;
  rows[1] = {.logit_row = 5,
             .temperature = 0.25f,
             .top_p = 0.5f,
             .min_p = 0.125f,
             .top_k = 40,
             .repetition_penalty = 1.5f,
             .frequency_penalty = 0.75f,
             .presence_penalty = -0.5f,
             .seed = (uint64_t{1} << 40) + 1,
             .choice = 2,
             .position = (uint64_t{1} << 50) + 3,
             .tokens = tokens,
             .prompt_tokens = 3,
             .drafts = drafts,
             .suppressed = suppressed,
             .logit_bias = biases};
  rows[2].logit_row = 1;
  rows[2].suppressed = suppressed;
  SamplingUpload upload;
  upload.Pack(absl::MakeSpan(rows).subspan(1), kMuchRoom);  // leaves no trace
  ASSERT_EQ(upload.Pack(rows, kMuchRoom), 3u);
  const Packed packed = Unpack(upload);
  const SampleLaunch& launch = packed.launch;

  EXPECT_EQ(launch.requests[0].workspace_row, -1);
  EXPECT_EQ(launch.requests[0].token_count, 0);
  EXPECT_EQ(launch.requests[0].prompt_tokens, 0);
  const SampleRequest& request = launch.requests[1];
  EXPECT_EQ(request.logit_row, 5);
  EXPECT_EQ(request.workspace_row, 0);
  EXPECT_EQ(request.temperature, 0.25f);
  EXPECT_EQ(request.top_p, 0.5f);
  EXPECT_EQ(request.min_p, 0.125f);
  EXPECT_EQ(request.top_k, 40);
  EXPECT_EQ(request.repetition_penalty, 1.5f);
  EXPECT_EQ(request.frequency_penalty, 0.75f);
  EXPECT_EQ(request.presence_penalty, -0.5f);
  EXPECT_EQ(request.seed, (uint64_t{1} << 40) + 1);
  EXPECT_EQ(request.choice, 2u);
  EXPECT_EQ(request.position, (uint64_t{1} << 50) + 3);
  EXPECT_EQ(request.prompt_tokens, 3);
  const int32_t* first = launch.ids + request.first_token;
  std::vector<int32_t> history = tokens;
  history.insert(history.end(), drafts.begin(), drafts.end());
  EXPECT_EQ(std::vector<int32_t>(first, first + request.token_count), history);
  first = launch.ids + request.first_suppressed;
  EXPECT_EQ(std::vector<int32_t>(first, first + request.suppressed_count), suppressed);
  ASSERT_EQ(request.bias_count, 2);
  for (int i = 0; i < 2; ++i) {
    const TokenBias& bias = launch.biases[request.first_bias + i];
    EXPECT_EQ(std::make_pair(bias.id, bias.bias), biases[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(launch.requests[2].logit_row, 1);
  EXPECT_EQ(launch.requests[2].workspace_row, 1);
  EXPECT_EQ(launch.ids[launch.requests[2].first_suppressed + 1], 4);
  const size_t bytes = SamplingUpload::MaxBytes(0, 0, 0) + SamplingUpload::MaxBytes(6, 2, 2) +
                       SamplingUpload::MaxBytes(0, 2, 0);
  EXPECT_EQ(upload.bytes().size(), bytes);
}

TEST(SamplingUploadTest, WhatFindsNoRoomIsLeftForTheNextLaunch) {
  const std::vector<int32_t> suppressed = {3, 4};
  std::vector<SampleRow> rows(5);
  for (size_t i = 1; i < 5; ++i) rows[i].suppressed = suppressed;
  SamplingUpload upload;
  EXPECT_EQ(upload.Pack(rows, {.bytes = 1 << 20, .workspace_rows = 2}), 3u);
  const size_t two =
      SamplingUpload::MaxBytes(0, 0, 0) + SamplingUpload::MaxBytes(0, suppressed.size(), 0);
  EXPECT_EQ(upload.Pack(rows, {.bytes = two, .workspace_rows = 9}), 2u);
  EXPECT_EQ(upload.bytes().size(), two);
  EXPECT_EQ(upload.Pack(rows, {.bytes = two - 1, .workspace_rows = 9}), 1u);
}

TEST(SamplingUploadTest, ARowWithoutRoomIsNotPacked) {
  const std::vector<SampleRow> rows(1);
  SamplingUpload upload;
  EXPECT_EQ(upload.Pack(rows, {.bytes = 8, .workspace_rows = 1}), 0u);
  EXPECT_TRUE(upload.bytes().empty());
}

TEST(SamplingUploadTest, ResultsAreOutcomes) {
  const SampleOutcome outcome = OutcomeOf({kSampledNonFinite, 7, 2.5f});
  EXPECT_EQ(outcome.kind, SampleOutcome::Kind::kNonFinite);
  EXPECT_EQ(outcome.token_id, 7);
  EXPECT_EQ(outcome.bad_logit, 2.5f);
  EXPECT_EQ(OutcomeOf({kSampledNoTokenLeft, 0, 0}).kind, SampleOutcome::Kind::kNoTokenLeft);
  EXPECT_EQ(OutcomeOf({kSampledToken, 3, 0}).token_id, 3);
}

}  // namespace
}  // namespace baton::backend::cuda
