// Workers whose memory the host cannot address, and whose tokens are drawn there: one answer all
// the same.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/cluster/worker_pair.h"
#include "tests/testing/devices.h"
#include "tests/testing/fake_device.h"

namespace baton {
namespace {

class DevicePairTest : public WorkerPairTest {
 protected:
  static worker::WorkerOptions On(testing::FakeDevice& device) {
    worker::WorkerOptions options = Options();
    options.make_backend = testing::MakerOf(device);
    return options;
  }
  // Before the members of WorkerPairTest, which use the devices.
  ~DevicePairTest() override {
    decode_ = nullptr;
    prefill_ = nullptr;
  }

  void ExpectTheOraclesTokens() {
    const uint32_t seed = std::random_device()();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    for (int i = 0; i < 10; ++i) {
      const std::vector<int32_t> prompt =
          RandomTokens(random, 1 + static_cast<int>(random() % 300));
      model::SamplingParams sampling = i % 2 == 0 ? Greedy() : Seeded(random());
      if (i % 3 == 0) sampling.frequency_penalty = 1;
      if (i == 5) sampling.logprobs = 3;
      const std::vector<int32_t> expected = TheOracle().Generate(prompt, sampling, 12);
      for (const bool warm : {false, true}) {
        const DecodeResult result = Decode(channel_, Request(prompt, sampling, 12));
        ASSERT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, expected) << "prompt " << i << (warm ? " warm" : " cold");
      }
    }
    ExpectIdle();
  }

  testing::FakeDevice prefill_device_, decode_device_;
};

TEST_F(DevicePairTest, BothOnDevices) {
  StartPair(On(prefill_device_), On(decode_device_));
  ExpectTheOraclesTokens();
  EXPECT_GT(prefill_device_.kv_reads, 0);
  EXPECT_GT(decode_device_.kv_writes, 0);
  // Their loops write these.
  decode_ = nullptr;
  prefill_ = nullptr;
  EXPECT_FALSE(prefill_device_.sampled_rows.empty());
  EXPECT_FALSE(decode_device_.sampled_rows.empty());
}

TEST_F(DevicePairTest, ADeviceToTheCpuAndBack) {
  StartPair(On(prefill_device_), Options());
  ExpectTheOraclesTokens();
  EXPECT_GT(prefill_device_.kv_reads, 0);
  decode_ = nullptr;
  prefill_ = nullptr;
  StartPair(Options(), On(decode_device_));
  ExpectTheOraclesTokens();
  EXPECT_GT(decode_device_.kv_writes, 0);
}

// Many at once: blocks run out, sequences give way and come back.
TEST_F(DevicePairTest, ManyAtOnceThroughATinyPool) {
  worker::WorkerOptions options = On(decode_device_);
  options.num_blocks = 24;
  StartPair(On(prefill_device_), options);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  struct Case {
    std::vector<int32_t> prompt;
    model::SamplingParams sampling;
    std::vector<int32_t> expected;
  };
  std::vector<Case> cases(48);
  for (Case& c : cases) {
    c.prompt = RandomTokens(random, 1 + static_cast<int>(random() % 200));
    c.sampling = Seeded(random());
    c.expected = TheOracle().Generate(c.prompt, c.sampling, 40);
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
        const Case& c = cases[at];
        const DecodeResult result = Decode(channel_, Request(c.prompt, c.sampling, 40));
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, c.expected) << "case " << at;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
}

// The CUDA backend's own arithmetic between two workers, and the oracle's on such a device.
class EmulatedGpuPairTest : public WorkerPairTest,
                            public ::testing::WithParamInterface<testing::Device> {};

INSTANTIATE_TEST_SUITE_P(Devices, EmulatedGpuPairTest, ::testing::ValuesIn(testing::Devices()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EmulatedGpuPairTest, OneAnswer) {
  const testing::Device device = GetParam();
  const auto make = [device](const backend::BackendOptions&) { return device.make(); };
  worker::WorkerOptions options = Options();
  options.make_backend = make;
  StartPair(options, options);
  engine::EngineOptions oracle_options = testing::Oracle::OptionsFor(options.model_dir, {});
  oracle_options.make_backend = make;
  testing::Oracle oracle(oracle_options);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 4; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + static_cast<int>(random() % 90));
    model::SamplingParams sampling = i % 2 == 0 ? Greedy() : Seeded(random());
    if (i == 3) sampling.logprobs = 3;
    const std::vector<int32_t> expected = oracle.Generate(prompt, sampling, 5);
    for (const bool warm : {false, true}) {
      const DecodeResult result = Decode(channel_, Request(prompt, sampling, 5));
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.tokens, expected) << "prompt " << i << (warm ? " warm" : " cold");
    }
  }
  ExpectIdle();
}

}  // namespace
}  // namespace baton
