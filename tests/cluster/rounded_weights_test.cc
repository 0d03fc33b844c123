// Workers whose weights were rounded when they were loaded, or whose KV is when it is written: one
// answer among those that agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "tests/cluster/worker_pair.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

class RoundedWeightsTest : public WorkerPairTest,
                           public ::testing::WithParamInterface<std::string> {};

TEST_P(RoundedWeightsTest, TokensEqualTheOracleColdAndWarm) {
  worker::WorkerOptions options = Options();
  options.weights = GetParam();
  worker::WorkerOptions decode_options = options;
  decode_options.threads = 2;
  StartPair(options, decode_options);
  engine::EngineOptions oracle_options = testing::Oracle::OptionsFor(ModelDir(), {});
  oracle_options.weight_bits = GetParam() == "int8" ? 8 : 4;
  testing::Oracle oracle(oracle_options);
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int other_answers = 0;
  for (int i = 0; i < 12; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + static_cast<int>(random() % 300));
    const model::SamplingParams sampling = i % 2 == 0 ? Greedy() : Seeded(random());
    const std::vector<int32_t> expected = oracle.Generate(prompt, sampling, 12);
    other_answers += expected != TheOracle().Generate(prompt, sampling, 12);
    for (const bool warm : {false, true}) {
      const DecodeResult result = Decode(channel_, Request(prompt, sampling, 12));
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.tokens, expected) << "prompt " << i << (warm ? " warm" : " cold");
    }
  }
  EXPECT_GT(other_answers, 0) << "weights were not rounded";
  ExpectIdle();
}

INSTANTIATE_TEST_SUITE_P(Weights, RoundedWeightsTest, ::testing::Values("int8", "int4"),
                         [](const auto& info) { return info.param; });

// KV of other weights would give an answer that neither worker gives alone.
TEST_F(WorkerPairTest, WorkersWithOtherWeightsRefuseEachOther) {
  worker::WorkerOptions rounded = Options();
  rounded.weights = "int8";
  StartPair(Options(), rounded);
  const DecodeResult result = Decode(channel_, Request({1, 2, 3}, Greedy(), 4));
  EXPECT_EQ(ErrorReason(result.status), "KV_LAYOUT");
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("with weights of 8 bits"));
}

TEST_F(WorkerPairTest, WorkersOfWhichOneDequantisesRefuseEachOther) {
  worker::WorkerOptions packed = Options();
  packed.weights = "int8";
  worker::WorkerOptions dequantized = packed;
  dequantized.dequantize_weights = true;
  StartPair(dequantized, packed);
  const DecodeResult result = Decode(channel_, Request({1, 2, 3}, Greedy(), 4));
  EXPECT_EQ(ErrorReason(result.status), "KV_LAYOUT");
  EXPECT_THAT(std::string(result.status.message()),
              HasSubstr("with dequantised weights of 8 bits"));
}

// Though the blocks may have the same bytes: what was computed in bfloat16 is not what float32 has.
TEST_F(WorkerPairTest, WorkersOfWhichOneRoundsKvRefuseEachOther) {
  worker::WorkerOptions plain = Options();
  plain.mix_numerics = true;  // by which they would refuse each other in any case
  worker::WorkerOptions rounding = plain;
  rounding.dtype = "float32";
  rounding.kv_cache_dtype = "bfloat16";
  StartPair(plain, rounding);
  const DecodeResult result = Decode(channel_, Request({1, 2, 3}, Greedy(), 4));
  EXPECT_EQ(ErrorReason(result.status), "KV_LAYOUT");
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("KV of bfloat16 of float32"));
}

TEST_F(WorkerPairTest, WorkersOfOtherNumericsRefuseEachOther) {
  worker::WorkerOptions mixing = Options();
  mixing.mix_numerics = true;
  StartPair(Options(), mixing);
  const DecodeResult result = Decode(channel_, Request({1, 2, 3}, Greedy(), 4));
  EXPECT_EQ(ErrorReason(result.status), "KV_LAYOUT");
  EXPECT_THAT(std::string(result.status.message()), HasSubstr(", by cpu "));
}

}  // namespace
}  // namespace baton
