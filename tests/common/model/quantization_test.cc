#include "common/model/quantization.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/backend/cpu/cpu_backend.h"
#include "common/backend/quantized.h"
#include "common/model/transformer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/model_dir.h"
#include "tests/testing/seed.h"

namespace baton::model {
namespace {

using baton::testing::ModelDir;
using baton::testing::ReadAll;
using baton::testing::SafetensorsBytes;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

// What a test may change of a checkpoint.
struct Files {
  json config;
  json header;
  std::string data;

  char* Bytes(const std::string& tensor) {
    return &data[header.at(tensor).at("data_offsets").at(0).get<size_t>()];
  }
};

absl::Status LoadChanged(const std::string& name, const std::function<void(Files&)>& change,
                         ModelConfig* loaded = nullptr) {
  const std::string source = std::string(BATON_CHECKPOINT_DIR) + "/" + name + "/";
  const std::string bytes = ReadAll(source + "model.safetensors");
  EXPECT_FALSE(bytes.empty()) << "no checkpoint at " << source;
  if (bytes.empty()) return absl::NotFoundError(source);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  Files files{.config = json::parse(ReadAll(source + "config.json")),
              .header = json::parse(bytes.substr(8, length)),
              .data = bytes.substr(8 + length)};
  change(files);
  const ModelDir dir;
  dir.Write("config.json", files.config.dump());
  dir.Write("model.safetensors", SafetensorsBytes(files.header.dump(), files.data));
  const auto config = LoadModelConfig(dir.path());
  if (!config.ok()) return config.status();
  if (loaded != nullptr) *loaded = *config;
  const auto backend = backend::MakeCpuBackend(
      {.compute = backend::BackendOptions::Compute::kF32, .thread_count = 1});
  return Transformer::Load(dir.path(), *config,
                           {.max_batch_tokens = 8, .max_logit_rows = 8, .max_positions = 64},
                           **backend)
      .status();
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(QuantizationTest, LoadsWhatIsUnchanged) {
  for (const char* name : {"tiny-qwen2-gptq4", "tiny-llama-gptq8", "tiny-llama-awq"}) {
    const absl::Status status = LoadChanged(name, [](Files&) {});
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
}

TEST(QuantizationTest, ReadsTheConfig) {
  ModelConfig config;
  ASSERT_TRUE(LoadChanged(
                  "tiny-llama-gptq8", [](Files&) {}, &config)
                  .ok());
  ASSERT_TRUE(config.quantization);
  EXPECT_EQ(config.quantization->bits, 8);
  EXPECT_EQ(config.quantization->group_size, 32);
  EXPECT_TRUE(config.quantization->zeros_less_one);
  EXPECT_FALSE(config.quantization->reordered);
  ASSERT_TRUE(LoadChanged(
                  "tiny-llama-awq", [](Files&) {}, &config)
                  .ok());
  EXPECT_EQ(config.quantization->format, WeightQuantization::Format::kAwq);
  EXPECT_FALSE(config.quantization->zeros_less_one);
}

TEST(QuantizationTest, RefusesWhatTheConfigSays) {
  const struct {
    const char* patch;
    absl::StatusCode code;
    const char* message;
  } cases[] = {
      {R"({"quant_method": "compressed-tensors"})", kUnsupported,
       "quantization_config.quant_method: found \"compressed-tensors\", expected \"gptq\", "},
      {R"({"quant_method": "bitsandbytes"})", kUnsupported, "quant_method: found \"bitsandbytes\""},
      {R"({"quant_method": null})", kUnsupported, "quant_method: found nothing"},
      {R"({"quant_method": 4})", kInvalid, "quant_method: found 4"},
      {R"({"bits": 3})", kUnsupported, "bits: found 3, expected 4 or 8"},
      {R"({"bits": null})", kInvalid, "bits: found nothing"},
      {R"({"bits": 0})", kInvalid, "bits: found 0"},
      {R"({"group_size": 0})", kInvalid, "group_size: found 0"},
      {R"({"group_size": -2})", kInvalid, "group_size: found -2"},
      {R"({"group_size": 4294967328})", kInvalid, "group_size: found 4294967328"},
      {R"({"desc_act": 1})", kInvalid, "desc_act: found 1"},
      {R"({"checkpoint_format": "marlin"})", kUnsupported, "checkpoint_format: found \"marlin\""},
      {R"({"is_marlin_format": true})", kUnsupported, "is_marlin_format: found true"},
      {R"({"format": "marlin"})", kUnsupported, "format: found \"marlin\""},
      {R"({"checkpoint_format": "gptq", "format": "gptq_v2"})", kInvalid,
       "format: found \"gptq_v2\", expected what checkpoint_format says"},
      {R"({"pack_dtype": "int8"})", kUnsupported, "pack_dtype: found \"int8\", expected \"int32\""},
      {R"({"dynamic": {"+:.*down.*": {"bits": 8}}})", kUnsupported,
       "quantization_config.dynamic.+:.*down.*: found one"},
      {R"({"rotation": "hadamard"})", kUnsupported,
       "quantization_config.rotation: found \"hadamard\", expected none"},
      {R"({"adapter": {"name": "lora", "rank": 8}})", kUnsupported, "adapter: found an object"},
      {R"({"kv_cache_scheme": {"num_bits": 8}})", kUnsupported, "kv_cache_scheme: found an object"},
      {R"({"activation_scheme": "static"})", kUnsupported, "activation_scheme: found \"static\""},
      {R"({"quant_method": "awq", "bits": 8})", kUnsupported, "bits: found 8, expected 4"},
      {R"({"quant_method": "awq", "version": "gemv"})", kUnsupported, "version: found \"gemv\""},
      {R"({"quant_method": "awq", "checkpoint_format": "gemv_fast"})", kUnsupported,
       "checkpoint_format: found \"gemv_fast\""},
      {R"({"quant_method": "awq", "desc_act": true})", kUnsupported, "desc_act: found true"},
      {R"({"quant_method": "awq", "zero_point": false})", kUnsupported, "zero_point: found false"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.patch);
    ExpectError(
        LoadChanged("tiny-qwen2-gptq4",
                    [&](Files& files) {
                      files.config["quantization_config"].merge_patch(json::parse(bad.patch));
                    }),
        bad.code, bad.message);
  }
  ExpectError(LoadChanged("tiny-qwen2-gptq4",
                          [](Files& files) { files.config["quantization_config"] = 4; }),
              kInvalid, "quantization_config: found 4");
  // Without it, float matrices are missing.
  ExpectError(LoadChanged("tiny-qwen2-gptq4",
                          [](Files& files) { files.config.erase("quantization_config"); }),
              kInvalid, "q_proj.weight: found nothing");
}

TEST(QuantizationTest, TakesWhatQuantisersWriteAboutThemselves) {
  ModelConfig config;
  const absl::Status loaded = LoadChanged(
      "tiny-qwen2-gptq4",
      [](Files& files) {
        files.config["quantization_config"].merge_patch(json::parse(
            R"({"damp_percent": 0.01, "damp_auto_increment": 0.0025, "static_groups": true,
                "true_sequential": true, "model_name_or_path": "x", "model_file_base_name": "model",
                "format": "gptq", "pack_dtype": "int32", "dynamic": {"-:.*lm_head.*": {"bits": 8}},
                "meta": {"quantizer": ["gptqmodel:5.0"]}, "sym": true, "lm_head": true,
                "rotation": null, "adapter": null, "modules_to_not_convert": ["lm_head"]})"));
      },
      &config);
  EXPECT_TRUE(loaded.ok()) << loaded;
}

constexpr char kUp[] = "model.layers.1.mlp.up_proj.";

// Config, shape and dtype must be of one mind, or bytes would be read as what they are not.
TEST(QuantizationTest, RefusesOtherShapesAndTypes) {
  const auto load = [](const std::string& tensor, const char* key, const json& value) {
    return LoadChanged("tiny-qwen2-gptq4",
                       [&](Files& files) { files.header[kUp + tensor][key] = value; });
  };
  ExpectError(load("qweight", "shape", {176, 8}), kInvalid,
              "up_proj.qweight: found shape [176, 8], expected [8, 176]");
  ExpectError(load("qweight", "shape", {8 * 176}), kInvalid, "qweight: found shape [1408]");
  ExpectError(load("qzeros", "shape", {22, 2}), kInvalid,
              "qzeros: found shape [22, 2], expected [2");
  ExpectError(load("scales", "shape", {176, 2}), kInvalid, "scales: found shape [176, 2]");
  ExpectError(load("g_idx", "shape", {8, 8}), kInvalid, "g_idx: found shape [8, 8], expected [64]");
  ExpectError(load("qweight", "dtype", "F32"), kUnsupported,
              "qweight: found dtype F32, expected I32");
  ExpectError(load("qzeros", "dtype", "U32"), kUnsupported, "qzeros: found dtype U32");
  ExpectError(load("g_idx", "dtype", "F32"), kUnsupported, "g_idx: found dtype F32");
  ExpectError(load("scales", "dtype", "I16"), kUnsupported,
              "scales: found dtype I16, expected F16 or BF16");
  for (const char* patch : {R"({"group_size": 64})", R"({"group_size": -1})", R"({"bits": 8})"}) {
    ExpectError(LoadChanged("tiny-qwen2-gptq4",
                            [&](Files& files) {
                              files.config["quantization_config"].merge_patch(json::parse(patch));
                            }),
                kInvalid, ": found shape");
  }
  ExpectError(LoadChanged("tiny-qwen2-gptq4",
                          [](Files& files) {
                            files.config["quantization_config"]["quant_method"] = "awq";
                            files.config["quantization_config"]["group_size"] = 16;
                          }),
              kInvalid, ": found shape");
}

TEST(QuantizationTest, RefusesMatricesThatAreNoWholeWordsOrGroups) {
  const WeightQuantization gptq{.bits = 4, .group_size = 32};
  const WeightQuantization awq{.format = WeightQuantization::Format::kAwq, .group_size = 32};
  ExpectError(QuantizedShapesOf(gptq, 12, 64).status(), kInvalid, "expected multiples of 8");
  ExpectError(QuantizedShapesOf(gptq, 64, 12).status(), kInvalid, "expected multiples of 8");
  EXPECT_TRUE(QuantizedShapesOf(gptq, 64, 40).ok());
  ExpectError(QuantizedShapesOf(awq, 64, 40).status(), kInvalid, "columns in groups of 32");
  EXPECT_TRUE(QuantizedShapesOf({.bits = 8, .group_size = -1}, 4, 12).ok());
}

TEST(QuantizationTest, NamesAMissingTensor) {
  for (const std::string tensor : {"qzeros", "scales"}) {
    ExpectError(LoadChanged("tiny-qwen2-gptq4",
                            [&](Files& files) {
                              files.header["other"] = files.header.at(kUp + tensor);
                              files.header.erase(kUp + tensor);
                            }),
                kInvalid, "up_proj." + tensor + ": found nothing, expected shape");
  }
  // Columns are in order where the file does not say.
  EXPECT_TRUE(LoadChanged("tiny-qwen2-gptq4", [](Files& files) {
                files.header["other"] = files.header.at(std::string(kUp) + "g_idx");
                files.header.erase(std::string(kUp) + "g_idx");
              }).ok());
}

TEST(QuantizationTest, RefusesHalfOfAStack) {
  ExpectError(LoadChanged("tiny-qwen2-gptq4",
                          [](Files& files) {
                            const std::string name = std::string(kUp) + "qweight";
                            files.header["other"] = files.header.at(name);
                            files.header.erase(name);
                          }),
              kUnsupported, "mlp.up_proj: found no qweight");
  ExpectError(LoadChanged("tiny-qwen2-gptq4",
                          [](Files& files) {
                            const auto end = files.data.size();
                            files.header[std::string(kUp) + "weight"] = {
                                {"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {end, end}}};
                          }),
              kInvalid, "up_proj: found both qweight and weight");
}

TEST(QuantizationTest, RefusesScalesThatAreNoNumbers) {
  for (const uint16_t bits : {0x7c00, 0xfc00, 0x7e01}) {
    ExpectError(LoadChanged("tiny-qwen2-gptq4",
                            [&](Files& files) {
                              // Group 1, row 3 of [2, 176].
                              std::memcpy(files.Bytes(std::string(kUp) + "scales") + 2 * 179, &bits,
                                          sizeof(bits));
                            }),
                kInvalid, "up_proj.: scales[1, 3]: found no finite number");
  }
}

TEST(QuantizationTest, RefusesGroupsThatDoNotExist) {
  for (const int32_t group : {2, -1, 1 << 30, INT32_MIN}) {
    ExpectError(LoadChanged("tiny-qwen2-gptq4",
                            [&](Files& files) {
                              std::memcpy(files.Bytes(std::string(kUp) + "g_idx") + 4 * 63, &group,
                                          sizeof(group));
                            }),
                kInvalid, "g_idx[63]: found " + std::to_string(group) + ", expected 0 to 1");
  }
  // A group of 31 columns, and another of 33.
  const auto last_in_first = [](bool desc_act) {
    return LoadChanged("tiny-qwen2-gptq4", [&](Files& files) {
      files.config["quantization_config"]["desc_act"] = desc_act;
      std::memset(files.Bytes(std::string(kUp) + "g_idx") + 4 * 63, 0, 4);
    });
  };
  ExpectError(last_in_first(true), kUnsupported, "g_idx: found a group of another size");
  ExpectError(last_in_first(false), kInvalid, "desc_act is false");
}

// AutoGPTQ wrote biases for modules that have none: zeros change nothing, anything else would.
TEST(QuantizationTest, OnlyZerosMayBeLeftOut) {
  const std::string bias = "model.layers.0.self_attn.o_proj.bias";
  ExpectError(LoadChanged("tiny-llama-gptq8", [&](Files& files) { files.Bytes(bias)[5] = 0x3c; }),
              kUnsupported, bias);
}

// Every value, zero point, scale and order, against the formats' definitions.
TEST(QuantizationTest, UnpacksBothFormats) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  for (int round = 0; round < 60; ++round) {
    WeightQuantization quantization;
    const bool awq = below(3) == 0;
    if (awq) quantization.format = WeightQuantization::Format::kAwq;
    quantization.bits = awq || below(2) ? 4 : 8;
    quantization.zeros_less_one = !awq && below(2);
    const int group_sizes[] = {-1, 8, 32, 40};
    quantization.group_size = group_sizes[below(4)];
    const int64_t rows = 8 * (1 + below(6));
    int64_t cols = 8 * (1 + below(20));
    if (awq && quantization.group_size > 0) {
      cols = quantization.group_size * (1 + below(4));
    }
    const int64_t size =
        quantization.group_size < 0 ? cols : std::min<int64_t>(quantization.group_size, cols);
    const int64_t groups = (cols + size - 1) / size;
    const int64_t a_word = 32 / quantization.bits;
    const auto words = [&](int64_t count) {
      std::vector<uint32_t> v(static_cast<size_t>(count));
      for (uint32_t& word : v) word = static_cast<uint32_t>(random());
      return v;
    };
    const std::vector<uint32_t> qweight = words(rows * cols / a_word);
    const std::vector<uint32_t> qzeros = words(groups * rows / a_word);
    std::vector<uint16_t> scales(static_cast<size_t>(groups * rows));
    for (uint16_t& scale : scales) scale = static_cast<uint16_t>(0x2000 + below(0x1000));
    std::vector<int32_t> g_idx;
    if (!awq && below(2)) {
      for (int64_t i = 0; i < cols; ++i) g_idx.push_back(static_cast<int32_t>(i / size));
      quantization.reordered = below(2);
      if (quantization.reordered) std::shuffle(g_idx.begin(), g_idx.end(), random);
    }
    // At an odd address, as a file may have them.
    const auto bytes = [](const auto& values) {
      std::string text(1, 'x');
      text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
      return text;
    };
    const std::string texts[] = {bytes(qweight), bytes(qzeros), bytes(scales), bytes(g_idx)};
    QuantizedTensors tensors{.qweight = absl::string_view(texts[0]).substr(1),
                             .qzeros = absl::string_view(texts[1]).substr(1),
                             .scales = absl::string_view(texts[2]).substr(1),
                             .g_idx = absl::string_view(texts[3]).substr(1)};
    const auto weights = QuantizedWeights::Unpack(quantization, rows, cols, tensors);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const backend::QuantizedHostMatrix view = weights->view();
    EXPECT_EQ(view.groups(), groups);
    const int awq_place[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const uint32_t mask = (1u << quantization.bits) - 1;
    std::vector<float> got(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      backend::DequantizeRow(view, r, got.data());
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t group = g_idx.empty() ? c / size : g_idx[static_cast<size_t>(c)];
        const auto along_rows = [&](const std::vector<uint32_t>& v, int64_t line) {
          const int64_t place = awq ? awq_place[r % 8] : r % a_word;
          return v[static_cast<size_t>((line * rows + r) / a_word)] >> place * quantization.bits &
                 mask;
        };
        const uint32_t q = awq ? along_rows(qweight, c)
                               : qweight[static_cast<size_t>(c / a_word * rows + r)] >>
                                         c % a_word * quantization.bits &
                                     mask;
        const int zero = static_cast<int>(along_rows(qzeros, group)) + quantization.zeros_less_one;
        const uint16_t scale = scales[static_cast<size_t>(group * rows + r)];
        const float value =
            std::ldexp(static_cast<float>(1024 + (scale & 0x3ff)), (scale >> 10 & 0x1f) - 25);
        ASSERT_EQ(got[static_cast<size_t>(c)],
                  static_cast<float>(static_cast<int>(q) - zero) * value)
            << "row " << r << ", column " << c << (awq ? ", AWQ" : ", GPTQ");
      }
    }
  }
}

}  // namespace
}  // namespace baton::model
