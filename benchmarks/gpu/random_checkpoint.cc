#include "benchmarks/gpu/random_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/gpu/random_numbers.h"
#include "common/backend/tensor.h"

namespace baton::gpu_bench {
namespace {

constexpr size_t kChunkHalves = size_t{4} << 20;

enum class Fill { kRandom, kOnes, kZeroPoints };

struct TensorPlan {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  Fill fill = Fill::kRandom;

  int64_t size_bytes() const {
    int64_t size = dtype == "I32" ? 4 : 2;
    for (const int64_t extent : shape) size *= extent;
    return size;
  }
};

void AddMatrix(const std::string& module, int64_t rows, int64_t cols, const ModelShape& shape,
               std::vector<TensorPlan>& tensors) {
  if (shape.bits == 0) {
    tensors.push_back({module + ".weight", "BF16", {rows, cols}});
    return;
  }
  const int64_t in_word = 32 / shape.bits;
  const int64_t groups = (cols + shape.group_size - 1) / shape.group_size;
  tensors.push_back({module + ".qweight", "I32", {cols / in_word, rows}});
  tensors.push_back({module + ".qzeros", "I32", {groups, rows / in_word}, Fill::kZeroPoints});
  tensors.push_back({module + ".scales", "BF16", {groups, rows}});
}

std::vector<TensorPlan> TensorsOf(const ModelShape& shape) {
  const int64_t d = shape.hidden, q = int64_t{shape.query_heads} * shape.head_dim;
  const int64_t kv = int64_t{shape.kv_heads} * shape.head_dim;
  std::vector<TensorPlan> tensors = {{"model.embed_tokens.weight", "BF16", {shape.vocab, d}}};
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    tensors.push_back({prefix + "input_layernorm.weight", "BF16", {d}, Fill::kOnes});
    AddMatrix(attention + "q_proj", q, d, shape, tensors);
    AddMatrix(attention + "k_proj", kv, d, shape, tensors);
    AddMatrix(attention + "v_proj", kv, d, shape, tensors);
    if (shape.experts > 0) {
      tensors.push_back({attention + "q_norm.weight", "BF16", {shape.head_dim}, Fill::kOnes});
      tensors.push_back({attention + "k_norm.weight", "BF16", {shape.head_dim}, Fill::kOnes});
    } else {
      tensors.push_back({attention + "q_proj.bias", "BF16", {q}});
      tensors.push_back({attention + "k_proj.bias", "BF16", {kv}});
      tensors.push_back({attention + "v_proj.bias", "BF16", {kv}});
    }
    AddMatrix(attention + "o_proj", d, q, shape, tensors);
    tensors.push_back({prefix + "post_attention_layernorm.weight", "BF16", {d}, Fill::kOnes});
    const auto add_mlp = [&](const std::string& of) {
      AddMatrix(of + "gate_proj", shape.ffn, d, shape, tensors);
      AddMatrix(of + "up_proj", shape.ffn, d, shape, tensors);
      AddMatrix(of + "down_proj", d, shape.ffn, shape, tensors);
    };
    if (shape.experts == 0) add_mlp(mlp);
    if (shape.experts > 0) tensors.push_back({mlp + "gate.weight", "BF16", {shape.experts, d}});
    for (int expert = 0; expert < shape.experts; ++expert) {
      add_mlp(absl::StrCat(mlp, "experts.", expert, "."));
    }
  }
  tensors.push_back({"model.norm.weight", "BF16", {d}, Fill::kOnes});
  if (!shape.tied_embeddings) tensors.push_back({"lm_head.weight", "BF16", {shape.vocab, d}});
  return tensors;
}

std::string HeaderOf(const std::vector<TensorPlan>& tensors) {
  std::string json = "{";
  int64_t at = 0;
  for (const TensorPlan& tensor : tensors) {
    const int64_t end = at + tensor.size_bytes();
    absl::StrAppend(&json, at == 0 ? "" : ", ", "\"", tensor.name, "\": {\"dtype\": \"",
                    tensor.dtype, "\", \"shape\": [", absl::StrJoin(tensor.shape, ", "),
                    "], \"data_offsets\": [", at, ", ", end, "]}");
    at = end;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  return json;
}

absl::Status NotWritten(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": could not be written"));
}

absl::Status WriteTensors(const std::vector<TensorPlan>& tensors, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const std::string header = HeaderOf(tensors);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(uint64_t{header.size()} >> 8 * i);
  file.write(reinterpret_cast<const char*>(length), sizeof(length)) << header;
  const std::vector<uint16_t> random = RandomHalves(kChunkHalves, backend::DType::kBF16);
  const std::vector<uint16_t> ones(kChunkHalves, 0x3f80);
  // Less one, as GPTQ stores them: the middle of 4 bits.
  const std::vector<uint16_t> zero_points(kChunkHalves, 0x7777);
  for (const TensorPlan& tensor : tensors) {
    const std::vector<uint16_t>& chunk = tensor.fill == Fill::kOnes         ? ones
                                         : tensor.fill == Fill::kZeroPoints ? zero_points
                                                                            : random;
    for (int64_t left = tensor.size_bytes(); left > 0;) {
      const int64_t part = std::min<int64_t>(left, int64_t{2} * kChunkHalves);
      file.write(reinterpret_cast<const char*>(chunk.data()), part);
      left -= part;
    }
    if (!file) return NotWritten(path);
  }
  file.close();
  return file ? absl::OkStatus() : NotWritten(path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RandomCheckpoint>> RandomCheckpoint::Write(
    const ModelShape& shape, const std::string& parent) {
  std::string folder = absl::StrCat(parent, "/", shape.name, "-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return NotWritten(folder);
  // From here on it is removed, whatever happens.
  auto checkpoint = absl::WrapUnique(new RandomCheckpoint(folder));
  std::ofstream config(folder + "/config.json");
  config << ConfigJson(shape);
  config.close();
  if (!config) return NotWritten(folder + "/config.json");
  const absl::Status written = WriteTensors(TensorsOf(shape), folder + "/model.safetensors");
  if (!written.ok()) return written;
  return checkpoint;
}

RandomCheckpoint::~RandomCheckpoint() {
  if (kept_) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace baton::gpu_bench
