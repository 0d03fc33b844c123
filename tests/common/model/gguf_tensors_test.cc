#include "common/model/gguf_tensors.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "common/backend/cpu/cpu_backend.h"
#include "common/model/transformer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/seed.h"

namespace baton::model {
namespace {

using ::baton::testing::GgufBytes;
using ::baton::testing::LittleEndian;
using ::baton::testing::TinyGguf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kTypeF32 = 0, kTypeQ2K = 10, kTypeQ4K = 12, kTypeQ6K = 14, kTypeQ8 = 8;
constexpr uint32_t kTypeQ5_1 = 7, kTypeMxfp4 = 39;

std::string Floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += LittleEndian(value);
  return bytes;
}

class GgufTensorsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TensorFile>> Open(const GgufBytes& bytes) {
    dir_.Write("x.gguf", bytes.Bytes());
    auto files = OpenGgufTensors(dir_.PathOf("x.gguf"));
    if (!files.ok()) return files.status();
    return std::move(files->at(0));
  }
  // Loads the whole model.
  absl::Status Load(const GgufBytes& bytes) {
    dir_.Write("x.gguf", bytes.Bytes());
    const std::string path = dir_.PathOf("x.gguf");
    const auto config = LoadModelConfig(path);
    if (!config.ok()) return config.status();
    const auto backend = backend::MakeCpuBackend({.thread_count = 1});
    return Transformer::Load(path, *config,
                             {.max_batch_tokens = 8, .max_logit_rows = 8, .max_positions = 64},
                             **backend)
        .status();
  }
  void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& message) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("x.gguf"), HasSubstr(message)));
  }

  testing::ModelDir dir_;
};

TEST_F(GgufTensorsTest, HasTheNamesOfTheFile) {
  const auto file = Open(TinyGguf().AddTensor("blk.0.other.bias", {1}, kTypeF32, Floats({1})));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const TensorEntry& entry : (*file)->tensors()) names.push_back(entry.name);
  EXPECT_THAT(
      names, ElementsAre("token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight",
                         "blk.0.ffn_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight",
                         "blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_gate.weight",
                         "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.0.other.bias"));
  const TensorEntry& embedding = (*file)->tensors()[0];
  EXPECT_THAT(embedding.shape, ElementsAre(10, 8));  // rows first
  EXPECT_EQ(embedding.weight_dtype, backend::DType::kF32);
}

TEST_F(GgufTensorsTest, PutsLlamasRowsInTransformersOrder) {
  GgufBytes bytes;
  bytes.Add("general.architecture", "llama")
      .Add("llama.attention.head_count", 2u)
      .AddTensor("blk.0.attn_q.weight", {1, 8}, kTypeF32, Floats({0, 2, 1, 3, 10, 12, 11, 13}))
      .AddTensor("blk.0.attn_v.weight", {1, 2}, kTypeF32, Floats({0, 1}));
  const auto file = Open(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorEntry& query = (*file)->tensors()[0];
  ASSERT_TRUE(NeedsConversion(query));
  EXPECT_FALSE(NeedsConversion((*file)->tensors()[1]));
  RoundingLoss loss;
  const auto matrix = ConvertMatrix(**file, query, backend::DType::kF16, &loss);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->dtype, backend::DType::kF32);  // the file's own
  std::vector<float> values(8);
  std::memcpy(values.data(), matrix->values.data(), 32);
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 10, 11, 12, 13));

  GgufBytes odd;
  odd.Add("general.architecture", "llama")
      .Add("llama.attention.head_count", 3u)
      .AddTensor("blk.0.attn_q.weight", {1, 8}, kTypeF32, Floats(std::vector<float>(8)));
  ExpectError(Open(odd).status(), absl::StatusCode::kInvalidArgument,
              "attn_q.weight: found 8 rows of 3 heads");
}

TEST_F(GgufTensorsTest, ExpertsAreMatricesOfTheirOwn) {
  constexpr size_t kCols = 16, kRows = 40, kExperts = 3;
  std::vector<float> values(kExperts * kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto file_with = [&](const std::string& name) {
    return GgufBytes()
        .Add("general.architecture", "gemma4")
        .AddTensor("blk.0." + name, {kCols, kRows, kExperts}, kTypeF32, Floats(values));
  };
  // Every value is its place in the stored tensor.
  const auto expect = [&](const TensorFile& file, const std::string& name, size_t rows,
                          size_t first) {
    const auto entry = std::find_if(file.tensors().begin(), file.tensors().end(),
                                    [&](const auto& each) { return each.name == name; });
    ASSERT_NE(entry, file.tensors().end()) << name;
    EXPECT_THAT(entry->shape, ElementsAre(rows, kCols));
    std::vector<float> found(rows * kCols);
    ASSERT_EQ(file.Bytes(*entry).size(), found.size() * sizeof(float));
    std::memcpy(found.data(), file.Bytes(*entry).data(), found.size() * sizeof(float));
    EXPECT_EQ(found.front(), static_cast<float>(first * kCols));
    EXPECT_EQ(found.back(), static_cast<float>((first + rows) * kCols - 1));
  };
  const auto down = Open(file_with("ffn_down_exps.weight"));
  const auto gate_up = Open(file_with("ffn_gate_up_exps.weight"));
  ASSERT_TRUE(down.ok() && gate_up.ok());
  EXPECT_EQ((*gate_up)->tensors().size(), 2 * kExperts);
  for (size_t i = 0; i < kExperts; ++i) {
    const std::string end = "_exps." + std::to_string(i) + ".weight";
    expect(**down, "blk.0.ffn_down" + end, kRows, i * kRows);
    expect(**gate_up, "blk.0.ffn_gate" + end, kRows / 2, i * kRows);
    expect(**gate_up, "blk.0.ffn_up" + end, kRows / 2, i * kRows + kRows / 2);
  }
  const std::string half(values.size() / 2 * sizeof(float), 0);
  for (const char* other : {"blk.0.ffn_up_exps.weight", "blk.0.ffn_gate_exps.1.weight"}) {
    const auto both = Open(file_with("ffn_gate_up_exps.weight")
                               .AddTensor(other, {kCols, kRows / 2, kExperts}, kTypeF32, half));
    ExpectError(both.status(), absl::StatusCode::kInvalidArgument,
                std::string(other) + ": found one beside blk.0.ffn_gate_up_exps.weight");
  }
}

TEST_F(GgufTensorsTest, ConvertsBlocksToTheTypeOfTheDevice) {
  const std::string half_of_one = "\xff\x3b";  // 1 - 2^-11
  GgufBytes bytes;
  bytes.AddTensor("a", {32, 2}, kTypeQ8,
                  half_of_one + std::string(32, 1) + half_of_one + std::string(32, 2));
  const auto file = Open(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  RoundingLoss loss;
  const auto matrix = ConvertMatrix(**file, (*file)->tensors()[0], backend::DType::kBF16, &loss);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_EQ(matrix->values.size(), 128u);
  std::vector<uint16_t> bits(64);
  std::memcpy(bits.data(), matrix->values.data(), 128);
  EXPECT_EQ(bits[0], 0x3f80);  // 1, the nearest
  EXPECT_EQ(bits[63], 0x4000);
}

TEST_F(GgufTensorsTest, ReportsWhatFloat16CannotHold) {
  GgufBytes bytes;
  bytes.AddTensor("a", {32, 1}, kTypeQ8, "\xff\x7b" + std::string(31, 1) + "\x02");  // 65504
  const auto file = Open(bytes);
  RoundingLoss loss;
  ASSERT_TRUE(ConvertMatrix(**file, (*file)->tensors()[0], backend::DType::kF16, &loss).ok());
  EXPECT_EQ(loss.overflows, 1);
  EXPECT_EQ(loss.values, 32);
}

// The rows of a matrix in super-blocks are those that ConvertMatrix makes, in Transformers' order.
TEST_F(GgufTensorsTest, SuperBlocksAreTheValuesOfBlocks) {
  std::mt19937 random(testing::TestSeed(1));
  for (const auto& [type, block_bytes, columns] :
       {std::tuple(kTypeQ4K, 144, 512), {kTypeQ6K, 210, 512}, {kTypeQ5_1, 24, 64}}) {
    const int blocks = 2, rows = 8;
    std::string data(static_cast<size_t>(rows * blocks * block_bytes), '\0');
    for (char& byte : data) byte = static_cast<char>(random() & 0x3f);  // finite scales
    GgufBytes bytes;
    bytes.Add("general.architecture", "llama")
        .Add("llama.attention.head_count", 2u)
        .AddTensor("blk.0.attn_q.weight", {static_cast<uint64_t>(columns), 8}, type, data);
    const auto file = Open(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const TensorEntry& entry = (*file)->tensors()[0];
    RoundingLoss loss;
    const auto expected = ConvertMatrix(**file, entry, backend::DType::kF32, &loss);
    ASSERT_TRUE(expected.ok()) << expected.status();
    std::vector<float> floats(expected->values.size() / 4);
    std::memcpy(floats.data(), expected->values.data(), expected->values.size());
    const auto matrix = SuperBlocksOf(**file, entry);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_EQ(matrix->cols, columns);
    const auto cols = static_cast<size_t>(columns);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<uint8_t> values(cols);
      std::vector<int8_t> factors(cols / 16);
      std::vector<uint16_t> scales(static_cast<size_t>(blocks)), leasts(scales.size());
      matrix->read(row, {values.data(), factors.data(), scales.data(), leasts.data()});
      std::vector<float> scale(scales.size()), least(scales.size());
      ToF32(scales.data(), backend::DType::kF16, scales.size(), scale.data());
      ToF32(leasts.data(), backend::DType::kF16, scales.size(), least.data());
      for (size_t i = 0; i < cols; ++i) {
        const size_t super = i / static_cast<size_t>(matrix->super_columns);
        const auto factor = [&](size_t half) {
          return static_cast<float>(factors[i / 32 * 2 + half]);
        };
        const float value =
            matrix->bits == 6
                ? scale[super] * factor(i / 16 % 2) * static_cast<float>(values[i] - 32)
                : scale[super] * factor(0) * static_cast<float>(values[i]) -
                      least[super] * factor(1);
        ASSERT_EQ(value, floats[static_cast<size_t>(row) * cols + i]) << row << " " << i;
      }
    }
  }
}

TEST_F(GgufTensorsTest, LoadsAModel) {
  EXPECT_TRUE(Load(TinyGguf()).ok()) << Load(TinyGguf());
  const std::string zeros(size_t{8} * 256 / 32 * 34, '\0');
  EXPECT_TRUE(Load(TinyGguf(kTypeQ8, zeros)).ok());
  // A few values of each are read: 1 is no factor.
  EXPECT_TRUE(Load(TinyGguf().AddTensor("rope_freqs.weight", {2}, kTypeF32, Floats({1, 8}))).ok());
}

TEST_F(GgufTensorsTest, RefusesByName) {
  const auto unsupported = absl::StatusCode::kUnimplemented;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  ExpectError(Load(TinyGguf(kTypeQ2K, std::string(size_t{8} * 84, '\0'))), unsupported,
              "blk.0.ffn_down.weight: found dtype Q2_K, expected F32, BF16, F16, "
              "Q8_0, ");
  std::string blocks(size_t{8} * 256 / 32 * 34, '\0');
  blocks[35] = '\x7c';  // the second scale is infinite; 0 times it is NaN
  ExpectError(Load(TinyGguf(kTypeQ8, blocks)), invalid,
              "blk.0.ffn_down.weight: row 0: found a scale that is no finite number");
  std::string fp4(size_t{8} * 256 / 32 * 17, '\0');
  fp4[17 * 8] = '\xf8';  // 2^121
  EXPECT_TRUE(Load(TinyGguf(kTypeMxfp4, fp4)).ok()) << Load(TinyGguf(kTypeMxfp4, fp4));
  fp4[17 * 8] = '\xf9';
  ExpectError(Load(TinyGguf(kTypeMxfp4, fp4)), invalid,
              "ffn_down.weight: row 1: found a scale of exponent 249, expected at most 248");
  for (const auto& [type, size, place] :
       {std::tuple(kTypeQ4K, 144, 0), {kTypeQ4K, 144, 2}, {kTypeQ6K, 210, 208}}) {
    std::string supers(static_cast<size_t>(8 * size), '\0');
    EXPECT_TRUE(Load(TinyGguf(type, supers)).ok()) << Load(TinyGguf(type, supers));
    supers[static_cast<size_t>(size + place + 1)] = '\x7e';  // NaN
    ExpectError(Load(TinyGguf(type, supers)), invalid,
                "ffn_down.weight: row 1: found a scale that is no finite number");
  }
  ExpectError(
      Load(TinyGguf().AddTensor("blk.0.attn_q_norm.weight", {4}, kTypeF32, Floats({1, 1, 1, 1}))),
      unsupported, "found \"blk.0.attn_q_norm.weight\"");
  ExpectError(Load(TinyGguf().AddTensor("blk.0.attn_output.bias", {8}, kTypeF32,
                                        Floats(std::vector<float>(8)))),
              unsupported, "attn_output.bias");
  ExpectError(Load(TinyGguf().AddTensor("rope_freqs.weight", {3}, kTypeF32, Floats({1, 1, 1}))),
              invalid, "rope_freqs.weight: found F32 [3], expected F32 [2]");
  ExpectError(Load(TinyGguf().AddTensor("rope_freqs.weight", {2}, kTypeF32, Floats({1, 0}))),
              invalid, "rope_freqs.weight[1]: found 0, expected a positive number");
  ExpectError(Load(TinyGguf().Add("tokenizer.ggml.model", "t5")), unsupported,
              "tokenizer.ggml.model: found \"t5\"");
  ExpectError(Load(GgufBytes().Add("general.architecture", "mamba")), unsupported,
              "general.architecture: found \"mamba\"");
}

}  // namespace
}  // namespace baton::model
