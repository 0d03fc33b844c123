// GGUF files against the directories that they stand for, on each device.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/model/model_runner.h"
#include "tests/testing/devices.h"
#include "tests/testing/forwarding_backend.h"
#include "tests/testing/model_dir.h"

namespace baton::model {
namespace {

struct GgufCase {
  const char* file;
  const char* directory;
  // What may differ: on a device of 16 bits the embedding, which a directory in float32 keeps; and
  // Llama 3's frequencies, which the file has as float32 factors, or Mamba's and the delta rule's
  // decays, of which the directory has the logarithms.
  bool rounds_embedding = false;
  bool rounds_floats = false;
};
void PrintTo(const GgufCase& one, std::ostream* out) { *out << one.file; }

std::string PathOf(const std::string& name) {
  return std::string(BATON_CHECKPOINT_DIR) + "/" + name;
}

class GgufModelTest
    : public ::testing::TestWithParam<std::tuple<GgufCase, baton::testing::Device>> {};

TEST_P(GgufModelTest, LogitsAreThoseOfTheDirectory) {
  const auto& [one, device] = GetParam();
  ModelRunner model(PathOf(std::string(one.file) + ".gguf"), device.make());
  ModelRunner reference(PathOf(one.directory), device.make());
  ASSERT_TRUE(model.ok() && reference.ok());
  EXPECT_EQ(model.progress().back(), 1);
  EXPECT_EQ(model.config().architecture, reference.config().architecture);
  EXPECT_EQ(model.config().eos_token_ids, reference.config().eos_token_ids);
  const std::vector<int32_t> prompt = Prompt(130, model.config().vocab_size);
  const Logits logits = model.Run(prompt, prompt.size());
  const Logits expected = reference.Run(prompt, prompt.size());
  ASSERT_EQ(logits.size(), expected.size());
  const double worst = LargestDifference(logits, expected);
  const bool in_16_bits = device.make().value()->activation_dtype() != backend::DType::kF32;
  const bool rounds_activations = model.config().has_blocks && device.rounds_activations;
  if ((one.rounds_embedding && in_16_bits) || one.rounds_floats || rounds_activations) {
    const double tolerance = device.logit_tolerance * (rounds_activations ? 5 : 2);
    EXPECT_LE(worst, in_16_bits ? tolerance : 1e-4);
  } else {
    EXPECT_TRUE(logits == expected) << "largest difference " << worst;
  }
}

std::string GgufTestName(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Files, GgufModelTest,
    ::testing::Combine(
        ::testing::Values(GgufCase{"tiny-qwen2-f32", "tiny-qwen2-wide"},
                          GgufCase{"tiny-qwen2-bf16-same", "tiny-qwen2-bf16"},
                          GgufCase{"tiny-qwen2-f16-same", "tiny-qwen2-f16"},
                          GgufCase{"tiny-qwen3-same", "tiny-qwen3"},
                          GgufCase{"tiny-mistral-same", "tiny-mistral"},
                          GgufCase{"tiny-llama-same", "tiny-llama", false, true},
                          GgufCase{"tiny-llama-q8_0", "tiny-llama-q8_0-float", true, true},
                          GgufCase{"tiny-llama-q5_1", "tiny-llama-q5_1-float", true, true},
                          GgufCase{"tiny-qwen2-mixed", "tiny-qwen2-mixed-float", true},
                          GgufCase{"tiny-qwen2-q8_0", "tiny-qwen2-q8_0-float", true},
                          GgufCase{"tiny-qwen2-split-00001-of-00004", "tiny-qwen2-split-float",
                                   true},
                          GgufCase{"tiny-qwen2-q4_0", "tiny-qwen2-q4_0-float", true},
                          GgufCase{"tiny-qwen2-q8_0-layers", "tiny-qwen2-q8_0-layers-float"},
                          GgufCase{"tiny-qwen2-q4_0-layers", "tiny-qwen2-q4_0-layers-float"},
                          GgufCase{"tiny-qwen2-q4_1", "tiny-qwen2-q4_1-float", true},
                          GgufCase{"tiny-qwen2-q5_0", "tiny-qwen2-q5_0-float", true},
                          GgufCase{"tiny-qwen2-q5_1", "tiny-qwen2-q5_1-float", true},
                          GgufCase{"tiny-qwen2-q4_k", "tiny-qwen2-q4_k-float"},
                          GgufCase{"tiny-qwen2-q5_k", "tiny-qwen2-q5_k-float"},
                          GgufCase{"tiny-qwen2-q6_k", "tiny-qwen2-q6_k-float"}),
        ::testing::ValuesIn(baton::testing::Devices())),
    [](const auto& info) {
      return GgufTestName(std::get<0>(info.param).file) + "_" + std::get<1>(info.param).name;
    });

// Of the other families, on a device that takes no minutes: what differs is in the file.
INSTANTIATE_TEST_SUITE_P(
    Families, GgufModelTest,
    ::testing::Combine(
        ::testing::Values(GgufCase{"tiny-gemma2-same", "tiny-gemma2"},
                          GgufCase{"tiny-gemma3-270m-same", "tiny-gemma3-270m"},
                          GgufCase{"tiny-gemma3-mm-same", "tiny-gemma3-mm"},
                          GgufCase{"tiny-smollm3-same", "tiny-smollm3"},
                          GgufCase{"tiny-ministral3-same", "tiny-ministral3"},
                          GgufCase{"tiny-ministral3-mm-same", "tiny-ministral3-mm"},
                          GgufCase{"tiny-phi3-same", "tiny-phi3", false, true},
                          GgufCase{"tiny-olmo2-same", "tiny-olmo2"},
                          GgufCase{"tiny-olmo3-same", "tiny-olmo3"},
                          GgufCase{"tiny-granite-same", "tiny-granite"},
                          GgufCase{"tiny-qwen2-yarn-same", "tiny-qwen2-yarn"},
                          GgufCase{"tiny-qwen3-yarn-same", "tiny-qwen3-yarn"},
                          GgufCase{"tiny-seedoss-same", "tiny-seedoss"},
                          GgufCase{"tiny-exaone4-same", "tiny-exaone4", false, true},
                          GgufCase{"tiny-mixtral-same", "tiny-mixtral"},
                          GgufCase{"tiny-olmoe-same", "tiny-olmoe"},
                          GgufCase{"tiny-gpt-oss-same", "tiny-gpt-oss"},
                          GgufCase{"tiny-gpt-oss-q8_0-mxfp4", "tiny-gpt-oss-q8_0-mxfp4-float"},
                          GgufCase{"tiny-deepseek-v2-same", "tiny-deepseek-v2"},
                          GgufCase{"tiny-glm4-moe-lite-same", "tiny-glm4-moe-lite"},
                          GgufCase{"tiny-deepseek-v2-q8_0", "tiny-deepseek-v2-q8_0-float", true},
                          GgufCase{"tiny-deepseek-v2-q4_k", "tiny-deepseek-v2-q4_k-float"},
                          GgufCase{"tiny-qwen3-moe-f32", "tiny-qwen3-moe-wide"},
                          GgufCase{"tiny-qwen3-moe-q8_0", "tiny-qwen3-moe-q8_0-float", true},
                          GgufCase{"tiny-qwen3-moe-q4_0", "tiny-qwen3-moe-q4_0-float", true},
                          GgufCase{"tiny-qwen3-moe-q4_k", "tiny-qwen3-moe-q4_k-float"}),
        ::testing::ValuesIn(baton::testing::FastDevices())),
    [](const auto& info) {
      return GgufTestName(std::get<0>(info.param).file) + "_" + std::get<1>(info.param).name;
    });

INSTANTIATE_TEST_SUITE_P(
    Recurrent, GgufModelTest,
    ::testing::Combine(
        ::testing::Values(
            GgufCase{"tiny-lfm2-f32", "tiny-lfm2-wide"},
            GgufCase{"tiny-lfm2-q8_0", "tiny-lfm2-q8_0-float", true},
            GgufCase{"tiny-lfm2-q4_k", "tiny-lfm2-q4_k-float", true},
            GgufCase{"tiny-lfm2-moe-f32", "tiny-lfm2-moe-wide"},
            GgufCase{"tiny-lfm2-moe-q4_0", "tiny-lfm2-moe-q4_0-float", true},
            GgufCase{"tiny-granite-hybrid-f32", "tiny-granite-hybrid-wide", false, true},
            GgufCase{"tiny-granite-hybrid-q8_0", "tiny-granite-hybrid-q8_0-float", true, true},
            GgufCase{"tiny-granite-hybrid-dense-same", "tiny-granite-hybrid-wide-dense", false,
                     true},
            GgufCase{"tiny-qwen3.5-f32", "tiny-qwen3.5-wide", false, true},
            GgufCase{"tiny-qwen3.5-q8_0", "tiny-qwen3.5-q8_0-float", true, true},
            GgufCase{"tiny-qwen3.5-q4_k", "tiny-qwen3.5-q4_k-float", true, true},
            GgufCase{"tiny-qwen3.5-moe-f32", "tiny-qwen3.5-moe-wide", false, true},
            GgufCase{"tiny-qwen3.5-moe-q4_0", "tiny-qwen3.5-moe-q4_0-float", true, true},
            GgufCase{"tiny-qwen3-next-f32", "tiny-qwen3-next-wide", false, true},
            GgufCase{"tiny-qwen3-next-q8_0", "tiny-qwen3-next-q8_0-float", true, true},
            GgufCase{"tiny-nemotron-h-f32", "tiny-nemotron-h-wide", false, true},
            GgufCase{"tiny-nemotron-h-q8_0", "tiny-nemotron-h-q8_0-float", true, true},
            GgufCase{"tiny-nemotron-h-moe-f32", "tiny-nemotron-h-moe-wide", false, true},
            GgufCase{"tiny-nemotron-h-moe-q4_0", "tiny-nemotron-h-moe-q4_0-float", true, true}),
        ::testing::ValuesIn(baton::testing::FastDevices())),
    [](const auto& info) {
      return GgufTestName(std::get<0>(info.param).file) + "_" + std::get<1>(info.param).name;
    });

INSTANTIATE_TEST_SUITE_P(
    MixedLayers, GgufModelTest,
    ::testing::Combine(
        ::testing::Values(GgufCase{"tiny-gemma4-same", "tiny-gemma4"},
                          GgufCase{"tiny-gemma4-mm-same", "tiny-gemma4-mm"},
                          GgufCase{"tiny-gemma4-moe-same", "tiny-gemma4-moe"},
                          GgufCase{"tiny-gemma4-q4_0", "tiny-gemma4-q4_0-float", true},
                          GgufCase{"tiny-gemma4-q4_k", "tiny-gemma4-q4_k-float", true},
                          GgufCase{"tiny-gemma4-moe-q8_0", "tiny-gemma4-moe-q8_0-float", true},
                          GgufCase{"tiny-gemma4-moe-q4_0", "tiny-gemma4-moe-q4_0-float", true}),
        ::testing::ValuesIn(baton::testing::FastDevices())),
    [](const auto& info) {
      return GgufTestName(std::get<0>(info.param).file) + "_" + std::get<1>(info.param).name;
    });

// Decays, and key heads in turn, on all devices.
INSTANTIATE_TEST_SUITE_P(
    RecurrentOnGpus, GgufModelTest,
    ::testing::Combine(
        ::testing::Values(GgufCase{"tiny-qwen3.5-q8_0", "tiny-qwen3.5-q8_0-float", true, true},
                          GgufCase{"tiny-nemotron-h-f32", "tiny-nemotron-h-wide", false, true}),
        ::testing::ValuesIn(baton::testing::Devices())),
    [](const auto& info) {
      return GgufTestName(std::get<0>(info.param).file) + "_" + std::get<1>(info.param).name;
    });

// What every device keeps in few bits: matrices in Q4_0 or Q8_0.
TEST(GgufModelFilesTest, MarksTheMatricesOfFewBits) {
  const auto load = [](const char* name) { return *LoadModelConfig(PathOf(name)); };
  for (const auto& [name, bits] :
       {std::pair("tiny-qwen2-q4_0.gguf", 4), {"tiny-qwen2-q8_0.gguf", 8}}) {
    const ModelConfig config = load(name);
    ASSERT_TRUE(config.quantization) << name;
    EXPECT_EQ(config.quantization->bits, bits);
    EXPECT_EQ(config.quantization->group_size, 32);
    for (const LayerSpec& layer : config.layers) {
      for (const SublayerSpec& sublayer : layer.sublayers) {
        ForEachProduct(sublayer,
                       [](const ProductSpec& product, int) { EXPECT_TRUE(product.quantized); });
      }
    }
    EXPECT_TRUE(config.lm_head_quantized);
  }
  EXPECT_FALSE(load("tiny-qwen2-q4_0-layers.gguf").lm_head_quantized);
  EXPECT_TRUE(load("tiny-llama-q8_0.gguf").lm_head_quantized) << "it is the embedding";
  EXPECT_FALSE(load("tiny-qwen2-q4_k.gguf").quantization);
  EXPECT_FALSE(load("tiny-qwen2-q5_0.gguf").quantization);
}

// Notes what is packed: "S4 Q8 F" is a stack of super-blocks of 4 bits, 8 bits and floats.
class NotingBackend final : public testing::ForwardingBackend {
 public:
  explicit NotingBackend(std::multiset<std::string>* packed)
      : ForwardingBackend(
            backend::MakeCpuBackend({.compute = backend::BackendOptions::Compute::kF32}).value()),
        packed_(packed) {}
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Pack(
      absl::Span<const backend::HostMatrix> stacked) override {
    packed_->insert("floats");
    return ForwardingBackend::Pack(stacked);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackQuantized(
      absl::Span<const backend::QuantizedHostMatrix> stacked) override {
    packed_->insert("quantized " + std::to_string(stacked[0].bits));
    return ForwardingBackend::PackQuantized(stacked);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackAny(
      absl::Span<const backend::AnyHostMatrix> stacked) override {
    std::string text;
    for (const backend::AnyHostMatrix& matrix : stacked) {
      text += text.empty() ? "" : " ";
      if (const auto* of_blocks = std::get_if<backend::SuperBlockHostMatrix>(&matrix)) {
        text += "S" + std::to_string(of_blocks->bits);
      } else if (const auto* of_few = std::get_if<backend::QuantizedHostMatrix>(&matrix)) {
        text += "Q" + std::to_string(of_few->bits);
      } else {
        text += "F";
      }
    }
    packed_->insert(text);
    return ForwardingBackend::PackAny(stacked);
  }

 private:
  std::multiset<std::string>* packed_;
};

// What a CPU keeps in few bits: all matrices in blocks, stacked with whatever they are stacked
// with.
TEST(GgufModelFilesTest, ACpuKeepsBlocksOfEveryType) {
  const auto packed = [](const char* name, int load_bits) {
    std::multiset<std::string> notes;
    ModelRunner model(PathOf(name), std::make_unique<NotingBackend>(&notes), load_bits);
    EXPECT_TRUE(model.ok()) << name;
    return notes;
  };
  const auto thrice = [](std::multiset<std::string> of_a_layer, const std::string& lm_head) {
    std::multiset<std::string> all = {lm_head};
    for (int layer = 0; layer < 3; ++layer) all.insert(of_a_layer.begin(), of_a_layer.end());
    return all;
  };
  // The model's bits are those of the Q8_0 of k.
  EXPECT_EQ(packed("tiny-qwen2-mixed.gguf", 0), thrice({"S4 Q8 F", "Q4", "S4 S5", "S6"}, "S4"));
  EXPECT_EQ(packed("tiny-llama-q5_1.gguf", 0), thrice({"S5 S5 S5", "S5", "S5 S5", "S5"}, "S5"));
  EXPECT_EQ(packed("tiny-qwen2-q4_k.gguf", 0),
            thrice({"floats", "floats", "floats", "S4"}, "floats"));
  EXPECT_EQ(packed("tiny-qwen2-q4_0.gguf", 0),
            thrice({"quantized 4", "quantized 4", "quantized 4", "quantized 4"}, "quantized 4"));
  // Asked for: rounded again.
  EXPECT_EQ(packed("tiny-qwen2-q4_k.gguf", 4),
            thrice({"quantized 4", "quantized 4", "quantized 4", "quantized 4"}, "quantized 8"));
}

// Workers on other machines may have the file under another name, or in several.
TEST(GgufModelFilesTest, TheFingerprintIsThatOfTheContent) {
  const std::string bytes = testing::ReadAll(PathOf("tiny-qwen2-q8_0.gguf"));
  ASSERT_FALSE(bytes.empty());
  const testing::ModelDir dir;
  dir.Write("other.gguf", bytes);
  std::string changed = bytes;
  changed.back() ^= 1;
  dir.Write("changed.gguf", changed);
  const auto fingerprint = [&](const std::string& path) {
    const auto config = LoadModelConfig(path);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->fingerprint : 0;
  };
  const uint64_t expected = fingerprint(PathOf("tiny-qwen2-q8_0.gguf"));
  EXPECT_EQ(fingerprint(dir.PathOf("other.gguf")), expected);
  EXPECT_EQ(fingerprint(PathOf("tiny-qwen2-split-00001-of-00004.gguf")), expected);
  EXPECT_NE(fingerprint(dir.PathOf("changed.gguf")), expected);
  EXPECT_NE(fingerprint(PathOf("tiny-qwen2-q4_0.gguf")), expected);
}

}  // namespace
}  // namespace baton::model
