// Models whose matrices have few bits against the float models that they stand for, on each device.
#include <fstream>
#include <iostream>
#include <string>
#include <tuple>
#include <vector>

#include "common/backend/cpu/cpu_backend.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/model/model_runner.h"
#include "tests/testing/devices.h"

namespace baton::model {
namespace {

struct Quantized {
  const char* name;
  // The device may add in another order of columns than the float model does.
  bool reordered = false;
};
void PrintTo(const Quantized& quantized, std::ostream* out) { *out << quantized.name; }

std::string QuantizedDir(const std::string& name) {
  return std::string(BATON_CHECKPOINT_DIR) + "/" + name;
}

class QuantizedModelTest
    : public ::testing::TestWithParam<std::tuple<Quantized, baton::testing::Device>> {
 protected:
  static Quantized quantized() { return std::get<0>(GetParam()); }
  static const baton::testing::Device& device() { return std::get<1>(GetParam()); }
  // 8 bits for 32 activations: about 5 times the error of bfloat16.
  static double tolerance() {
    return device().logit_tolerance * (device().rounds_activations ? 5 : 1);
  }
};

// Bit by bit: a weight is one 16-bit value (on a CPU in float32, one float), dequantised by any
// kernel; and for every number of rows: whole prompts, chunks and single tokens take different
// kernels.
TEST_P(QuantizedModelTest, LogitsAreThoseOfTheFloatModel) {
  ModelRunner model(QuantizedDir(quantized().name), device().make());
  ModelRunner reference(QuantizedDir(std::string(quantized().name) + "-float"), device().make());
  ASSERT_TRUE(model.ok() && reference.ok());
  ASSERT_TRUE(model.config().quantization && !reference.config().quantization);
  EXPECT_NE(model.config().fingerprint, reference.config().fingerprint);
  const std::vector<int32_t> prompt = Prompt(130, model.config().vocab_size);
  const Logits whole = model.Run(prompt, prompt.size());
  const Logits expected = reference.Run(prompt, prompt.size());
  ASSERT_EQ(whole.size(), expected.size());
  if (quantized().reordered || device().rounds_activations) {
    EXPECT_LE(LargestDifference(whole, expected), tolerance());
  } else {
    EXPECT_EQ(LargestDifference(whole, expected), 0);
    EXPECT_TRUE(whole == expected);
  }
  for (const size_t chunk : {13, 29, 50}) {
    EXPECT_TRUE(model.Run(prompt, chunk) == whole) << "in chunks of " << chunk;
  }
  // On a slow device, through two blocks and into a third: what one row does over a longer context
  // is no matter of its weights, and transformer_test has it.
  const size_t singly = device().slow ? 40 : prompt.size();
  const auto end = static_cast<ptrdiff_t>(singly);
  EXPECT_TRUE(model.Run({prompt.begin(), prompt.begin() + end}, 1) ==
              Logits(whole.begin(), whole.begin() + end))
      << "one by one";
}

// What float32 on the CPU makes of the same file.
TEST_P(QuantizedModelTest, IsNearTheCpu) {
  ModelRunner model(QuantizedDir(quantized().name), device().make());
  ModelRunner cpu(QuantizedDir(quantized().name));
  ASSERT_TRUE(model.ok() && cpu.ok());
  const std::vector<int32_t> prompt = Prompt(70, model.config().vocab_size);
  const double error =
      LargestDifference(model.Run(prompt, prompt.size()), cpu.Run(prompt, prompt.size()));
  EXPECT_LE(error, 2 * tolerance());  // the worst of all logits, not of a few
  std::cout << quantized().name << " on " << device().name << ": largest difference " << error
            << "\n";
}

std::string TestName(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, QuantizedModelTest,
    ::testing::Combine(::testing::Values(Quantized{"tiny-qwen2-gptq4"},
                                         Quantized{"tiny-llama-gptq8"},
                                         Quantized{"tiny-llama-gptq4-order", true},
                                         Quantized{"tiny-qwen3-gptq4-channel"},
                                         Quantized{"tiny-llama-awq"}, Quantized{"tiny-qwen2-awq"}),
                       ::testing::ValuesIn(baton::testing::Devices())),
    [](const auto& info) {
      return TestName(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
    });

INSTANTIATE_TEST_SUITE_P(Experts, QuantizedModelTest,
                         ::testing::Combine(::testing::Values(Quantized{"tiny-qwen3-moe-gptq4"},
                                                              Quantized{"tiny-gpt-oss-mxfp4"}),
                                            ::testing::ValuesIn(baton::testing::Devices())),
                         [](const auto& info) {
                           return TestName(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Latent, QuantizedModelTest,
                         ::testing::Combine(::testing::Values(Quantized{"tiny-deepseek-v2-awq"}),
                                            ::testing::ValuesIn(baton::testing::FastDevices())),
                         [](const auto& info) {
                           return TestName(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name;
                         });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(QuantizedModelTest);

using HostExpertsTest = QuantizedModelTest;

TEST_P(HostExpertsTest, ExpertsInTheHostsMemoryChangeNoBit) {
  if (device().make().value()->host_packer() == nullptr) {
    GTEST_SKIP() << "the device's memory is the host's";
  }
  const std::string dir = QuantizedDir(quantized().name);
  ModelRunner resident(dir, device().make());
  ASSERT_TRUE(resident.ok());
  const std::vector<int32_t> prompt = Prompt(40, resident.config().vocab_size);
  const Logits expected = resident.Run(prompt, prompt.size());
  // The experts of one layer, and then those of all, are on the host.
  for (const int layers : {1, 1000}) {
    ModelRunner model(dir, device().make(), 0, ModelRunner::kMaxPositions, layers);
    ASSERT_TRUE(model.ok());
    EXPECT_TRUE(model.Run(prompt, prompt.size()) == expected) << layers << " layers";
    EXPECT_TRUE(model.Run(prompt, 7) == expected) << layers << " layers, in chunks";
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, HostExpertsTest,
                         ::testing::Combine(::testing::Values(Quantized{"tiny-gpt-oss-mxfp4"},
                                                              Quantized{"tiny-deepseek-v2"}),
                                            ::testing::ValuesIn(baton::testing::Devices())),
                         [](const auto& info) {
                           return TestName(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name;
                         });

// The float matrices that they stand for, as make_expected.py had Transformers multiply by them in
// float64.
TEST(QuantizedModelFilesTest, LogitsAreThoseOfTransformers) {
  constexpr double kTolerance = 1e-4;
  for (const char* name : {"tiny-qwen2-gptq4", "tiny-llama-awq", "tiny-gpt-oss-mxfp4"}) {
    SCOPED_TRACE(name);
    std::ifstream file("tests/common/model/expected/" + std::string(name) + ".json");
    const auto expected = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(expected.is_object()) << "run make_expected.py";
    ModelRunner model(QuantizedDir(name));
    ASSERT_TRUE(model.ok());
    ASSERT_EQ(expected["cases"].size(), 4);
    for (const auto& one : expected["cases"]) {
      const auto prompt = one["prompt"].get<std::vector<int32_t>>();
      const Logits logits = model.Run(prompt, prompt.size());
      ASSERT_GT(one["samples"].size(), 10);
      for (const auto& sample : one["samples"]) {
        EXPECT_NEAR(logits.at(sample[0]).at(sample[1]), sample[2].get<double>(), kTolerance);
      }
      for (const auto& top : one["top"]) {
        EXPECT_NEAR(logits.back().at(top[0]), top[1].get<double>(), kTolerance);
      }
    }
  }
}

// lm_head, and what is named in the config, stay as they are in the file.
TEST(QuantizedModelFilesTest, SomeMatricesStayFloat) {
  const auto config = LoadModelConfig(QuantizedDir("tiny-qwen3-gptq4-channel"));
  ASSERT_TRUE(config.ok()) << config.status();
  for (const LayerSpec& layer : config->layers) {
    EXPECT_TRUE(layer.attention().qkv.quantized && layer.mlp().gate_up.quantized);
    EXPECT_FALSE(layer.mlp().down.quantized || layer.attention().output.quantized);
  }
  EXPECT_FALSE(config->lm_head_quantized);
}

}  // namespace
}  // namespace baton::model
