#include "common/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/backend/cpu/cpu_backend.h"
#include "common/model/transformer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/forwarding_backend.h"
#include "tests/testing/model_dir.h"

namespace baton::model {
namespace {

using baton::testing::ModelDir;
using baton::testing::ReadAll;
using baton::testing::SafetensorsBytes;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<backend::Backend> CpuBackend() {
  return backend::MakeCpuBackend(
             {.compute = backend::BackendOptions::Compute::kF32, .thread_count = 1})
      .value();
}

// Loads a checkpoint with another header, and perhaps other bytes behind it.
absl::Status LoadChanged(const std::function<void(json& header)>& change,
                         const std::function<void(std::string& data)>& change_data = nullptr,
                         std::unique_ptr<backend::Backend> backend = CpuBackend(),
                         const std::string& name = "tiny-llama") {
  const std::string source = absl::StrCat(BATON_CHECKPOINT_DIR, "/", name, "/");
  const std::string bytes = ReadAll(source + "model.safetensors");
  EXPECT_FALSE(bytes.empty()) << "no checkpoint at " << source;
  if (bytes.empty()) return absl::NotFoundError(source);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  json header = json::parse(bytes.substr(8, length));
  change(header);
  std::string data = bytes.substr(8 + length);
  if (change_data) change_data(data);
  const ModelDir dir;
  dir.Write("config.json", ReadAll(source + "config.json"));
  dir.Write("model.safetensors", SafetensorsBytes(header.dump(), data));
  const auto config = LoadModelConfig(dir.path());
  if (!config.ok()) return config.status();
  const auto model = Transformer::Load(
      dir.path(), *config, {.max_batch_tokens = 8, .max_logit_rows = 8, .max_positions = 64},
      *backend);
  return model.status();
}

void Rename(json& header, const std::string& from, const std::string& to) {
  header[to] = header.at(from);
  header.erase(from);
}

TEST(WeightsTest, LoadsWhatIsUnchanged) {
  const absl::Status status = LoadChanged([](json&) {});
  EXPECT_TRUE(status.ok()) << status;
}

// A tied embedding is in memory once, unless the LM head is rounded at load.
TEST(WeightsTest, ATiedEmbeddingIsTheLmHead) {
  const std::string dir = "models/demo";
  auto config = LoadModelConfig(dir);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->tied_embeddings);
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const int load_bits : {0, 8}) {
    config->load_bits = load_bits;
    const auto backend = CpuBackend();
    const auto weights = LoadWeights(*checkpoint, *config, nullptr, *backend);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->embedding.memory != nullptr, load_bits > 0);
  }
}

TEST(WeightsTest, NamesAMissingTensor) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.2.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"}) {
    const absl::Status status = LoadChanged([&](json& header) { Rename(header, name, "other"); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string("model.safetensors: ") + name + ": found nothing, expected"));
  }
}

TEST(WeightsTest, NamesAMisshapenTensor) {
  absl::Status status = LoadChanged([](json& header) {
    header["model.layers.1.mlp.up_proj.weight"]["shape"] = {96, 160};
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.1.mlp.up_proj.weight: found shape [96, 160], expected "
                        "[160, 96]"));
  status = LoadChanged([](json& header) { header["model.norm.weight"]["shape"] = {1, 96}; });
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.norm.weight: found shape [1, 96]"));
  status = LoadChanged(
      [](json& header) { header["model.layers.0.self_attn.q_proj.weight"]["shape"] = {96 * 96}; });
  EXPECT_THAT(std::string(status.message()), HasSubstr("found shape [9216], expected [96, 96]"));
}

TEST(WeightsTest, NamesADTypeThatIsNoWeights) {
  const absl::Status status = LoadChanged(
      [](json& header) { header["model.layers.0.mlp.gate_proj.weight"]["dtype"] = "I32"; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.0.mlp.gate_proj.weight: found dtype I32"));
}

// Appends a tensor without elements: it needs no bytes.
absl::Status LoadWithExtra(const std::string& name) {
  return LoadChanged([&](json& header) {
    uint64_t end = 0;
    for (const auto& [key, value] : header.items()) {
      if (key != "__metadata__") end = std::max(end, value["data_offsets"][1].get<uint64_t>());
    }
    header[name] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {end, end}}};
  });
}

TEST(WeightsTest, RefusesABiasOrNormThatWouldBeLeftOut) {
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.bias", "model.layers.2.self_attn.q_norm.weight"}) {
    const absl::Status status = LoadWithExtra(name);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(WeightsTest, LeavesOutWhatChangesNothing) {
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "visual.patch.weight",
                           "model.layers.7.input_layernorm.weight"}) {
    const absl::Status status = LoadWithExtra(name);
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
  // Tied, it would be a copy of the embedding.
  EXPECT_THAT(std::string(LoadWithExtra("lm_head.weight").message()),
              HasSubstr("lm_head.weight: found shape [0], expected the embedding's [384, 96]"));
}

TEST(WeightsTest, SaysWhichLayersForSpeculationAreLeftOut) {
  // The last three have whole heads.
  for (const auto& [shape, count, first] :
       {std::tuple("tiny-qwen3.5", 2, "mtp.fc.weight"),
        {"tiny-qwen3.5-moe", 2, "mtp.fc.weight"},
        {"tiny-qwen3-next", 2, "mtp.fc.weight"},
        {"tiny-nemotron-h", 2, "mtp.fc.weight"},
        {"tiny-nemotron-h-moe", 2, "mtp.fc.weight"},
        {"tiny-qwen3.5-mm", 15, "mtp.fc.weight"},
        {"tiny-qwen3.5-moe-mm", 19, "mtp.fc.weight"},
        {"tiny-glm4-moe-lite", 50, "model.layers.4.eh_proj.weight"}}) {
    ::testing::internal::CaptureStderr();
    const absl::Status status = LoadChanged([](json&) {}, [](std::string&) {}, CpuBackend(), shape);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(status.ok()) << shape << ": " << status;
    EXPECT_THAT(log, HasSubstr(absl::StrCat("left out ", count,
                                            " tensors of layers for speculation "
                                            "(multi-token prediction), e.g. \"",
                                            first, "\"")))
        << shape;
    // The tensors for images have a line of their own.
    const bool images = absl::EndsWith(shape, "-mm");
    EXPECT_EQ(absl::StrContains(log, "does not have, e.g. \"model.visual."), images) << log;
    EXPECT_EQ(absl::StrContains(log, "does not have"), images) << log;
  }
}

// A head borrows the model's embedding and LM head, so copies that it brings must be the same.
TEST(WeightsTest, AHeadWithAnotherEmbeddingIsRefused) {
  const std::string source = absl::StrCat(BATON_CHECKPOINT_DIR, "/tiny-glm4-moe-lite/");
  const std::string bytes = ReadAll(source + "model.safetensors");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  const json header = json::parse(bytes.substr(8, length));
  for (const char* changed :
       {"", "model.layers.4.embed_tokens.weight", "model.layers.4.shared_head.head.weight"}) {
    std::string data = bytes.substr(8 + length);
    if (*changed != 0) data[header[changed]["data_offsets"][0].get<size_t>() + 1] ^= 1;
    const ModelDir dir;
    dir.Write("config.json", ReadAll(source + "config.json"));
    dir.Write("model.safetensors", SafetensorsBytes(header.dump(), data));
    auto config = LoadModelConfig(dir.path());
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_NE(config->mtp, nullptr);
    config->loads_mtp = true;
    const auto checkpoint = Checkpoint::Open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto backend = CpuBackend();
    const absl::Status status =
        LoadMtpWeights(*checkpoint, MtpHeadConfig(*config), *backend).status();
    EXPECT_EQ(status.ok(), *changed == 0) << changed << status;
    if (*changed == 0) continue;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(changed, ": found other values than in")));
  }
}

// A device that multiplies float16, as far as loading goes.
class HalfBackend final : public baton::testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  backend::DType activation_dtype() const override { return backend::DType::kF16; }
};

// What the log says of tiny-llama on such a device, with these values at the start of a matrix.
std::string LogOfHalf(const std::vector<float>& values) {
  uint64_t begin = 0;
  ::testing::internal::CaptureStderr();
  const absl::Status status = LoadChanged(
      [&](json& header) {
        begin = header.at("model.layers.1.mlp.up_proj.weight").at("data_offsets").at(0);
      },
      [&](std::string& data) {
        std::memcpy(&data[begin], values.data(), values.size() * sizeof(float));
      },
      std::make_unique<HalfBackend>(CpuBackend()));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(status.ok()) << status;
  return log;
}

TEST(WeightsTest, SaysWhatBecomesInfiniteInFloat16) {
  // 65519 rounds to float16's largest, 65520 does not; the fourth is infinite to begin with.
  const std::string log = LogOfHalf({65519, 65520, -1e30f, HUGE_VALF});
  EXPECT_THAT(log, HasSubstr("this device multiplies float16"));
  EXPECT_THAT(log, HasSubstr(": 2 of "));
  EXPECT_THAT(log, HasSubstr("weights are beyond what float16 holds and become infinite"));
  EXPECT_THAT(LogOfHalf({65519, 1}), Not(HasSubstr("infinite")));
}

// It would leave no order among the experts.
TEST(WeightsTest, RefusesARoutersBiasThatIsNotFinite) {
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  for (const float bias : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    uint64_t begin = 0;
    const absl::Status status = LoadChanged(
        [&](json& header) { begin = header.at(name).at("data_offsets").at(0); },
        [&](std::string& data) { std::memcpy(&data[begin + sizeof(bias)], &bias, sizeof(bias)); },
        CpuBackend(), "tiny-glm4-moe-lite");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("model.safetensors: ", name, "[1]: found ", bias,
                                       ", expected a finite number")));
  }
}

TEST(WeightsTest, RefusesMorePositionsThanTheModelHas) {
  const std::string dir = std::string(BATON_CHECKPOINT_DIR) + "/tiny-llama";
  const auto config = LoadModelConfig(dir);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto backend = backend::MakeCpuBackend({.thread_count = 1});
  const absl::Status status =
      Transformer::Load(dir, *config,
                        {.max_batch_tokens = 8, .max_logit_rows = 8, .max_positions = 513},
                        **backend)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_position_embeddings: found 512"));
}

}  // namespace
}  // namespace baton::model
