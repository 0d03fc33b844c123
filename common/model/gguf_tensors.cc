#include "common/model/gguf_tensors.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/backend/cpu/convert.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/gguf/file.h"
#include "common/model/architecture.h"
#include "common/model/config_limits.h"
#include "common/model/gguf_blocks.h"

namespace baton::model {
namespace {

using backend::DType;

constexpr absl::string_view kModulesOfMany[] = {"_exps", ".attn_k_b", ".attn_v_b"};

std::optional<DType> WeightDType(absl::string_view type) {
  if (type == "F32") return DType::kF32;
  if (type == "F16") return DType::kF16;
  if (type == "BF16") return DType::kBF16;
  return std::nullopt;
}

// The rows of queries and keys may be in llama.cpp's order.
absl::StatusOr<int> InterleavedHeads(const gguf::File& file, absl::string_view name,
                                     uint64_t rows) {
  const bool query = absl::StrContains(name, ".attn_q.");
  if (!query && !absl::StrContains(name, ".attn_k.")) return 0;
  BATON_ASSIGN_OR_RETURN(const auto found, file.Text("general.architecture"));
  const Architecture* architecture = FindGgufArchitecture(found.value_or(""));
  if (architecture == nullptr || !architecture->gguf_pairs_rows) return 0;
  const std::string key = absl::StrCat(architecture->gguf, ".attention.head_count");
  BATON_ASSIGN_OR_RETURN(auto heads, file.Integer(key));
  if (!query) {
    const std::string kv_key = absl::StrCat(key, "_kv");
    if (file.IsList(kv_key)) {  // 0 in layers without attention
      BATON_ASSIGN_OR_RETURN(const auto by_layer, file.IntegerList(kv_key));
      for (uint64_t i = 0; i < by_layer->size(); ++i) {
        if (by_layer->At(i) != 0) heads = by_layer->At(i);
      }
    } else {
      BATON_ASSIGN_OR_RETURN(const auto kv_heads, file.Integer(kv_key));
      if (kv_heads) heads = kv_heads;
    }
  }
  if (heads && *heads > 0 && *heads <= kMaxHeads &&
      rows % (2 * static_cast<uint64_t>(*heads)) == 0) {
    return static_cast<int>(*heads);
  }
  return file.Invalid(name, absl::StrCat("found ", rows, " rows of ", heads.value_or(0),
                                         " heads, expected an even number of rows for each"));
}

// What low bits are lost is no news of a quantised matrix.
void CountOverflows(const std::vector<float>& values, DType target, RoundingLoss* loss) {
  RoundingLoss row;
  CountLoss(values.data(), DType::kF32, target, values.size(), &row);
  loss->values += row.values;
  loss->overflows += row.overflows;
  loss->inexact += row.overflows;
}

absl::Status FoundBoth(const gguf::File& file, absl::string_view name, absl::string_view other) {
  return file.Invalid(name, absl::StrCat("found one beside ", other, ", expected one of both"));
}

// The matrices of all experts of a layer are one tensor, "blk.0.ffn_up_exps.weight" of [experts,
// rows, columns]: they become "blk.0.ffn_up_exps.0.weight" and so on, those of ffn_gate_up_exps two
// of each. So do those of the heads of latent attention. Others stay as they are.
absl::Status AddEntries(const gguf::File& file, TensorEntry entry,
                        std::vector<TensorEntry>* entries) {
  constexpr absl::string_view kWeight = ".weight";
  const bool of_many = absl::c_any_of(kModulesOfMany, [&](absl::string_view end) {
    return absl::EndsWith(entry.name, absl::StrCat(end, kWeight));
  });
  const uint64_t experts = entry.shape.size() == 3 ? entry.shape[0] : 0;
  const uint64_t bytes = entry.end - entry.begin;
  absl::string_view layer = entry.name;
  const bool halves = experts > 0 && absl::ConsumeSuffix(&layer, ".ffn_gate_up_exps.weight") &&
                      entry.shape[1] % 2 == 0;
  const uint64_t parts = halves ? 2 : 1;
  // An entry and its name take no more memory than the matrix that they stand for.
  if (experts < 1 || experts > kMaxExperts || bytes % experts != 0 ||
      bytes / experts < parts * 4 * sizeof(TensorEntry) || !of_many) {
    entries->push_back(std::move(entry));
    return absl::OkStatus();
  }
  const std::string stacked = entry.name;
  std::vector<std::string> modules = {std::string(absl::StripSuffix(stacked, kWeight))};
  if (halves) {  // gate's rows, and up's behind them
    modules = {absl::StrCat(layer, ".ffn_gate_exps"), absl::StrCat(layer, ".ffn_up_exps")};
    for (const std::string& module : modules) {
      const std::string name = absl::StrCat(module, kWeight);
      if (file.FindTensor(name) != nullptr) return FoundBoth(file, name, stacked);
    }
  }
  entry.shape.erase(entry.shape.begin());
  entry.shape[0] /= parts;
  entry.interleaved_heads = 0;
  const uint64_t part_bytes = bytes / experts / parts;
  entry.end = entry.begin;
  for (uint64_t expert = 0; expert < experts; ++expert) {
    for (const std::string& module : modules) {
      entry.name = absl::StrCat(module, ".", expert, kWeight);
      if (file.FindTensor(entry.name) != nullptr) return FoundBoth(file, entry.name, stacked);
      entry.begin = entry.end;
      entry.end = entry.begin + part_bytes;
      entries->push_back(entry);
    }
  }
  return absl::OkStatus();
}

absl::Status BadScale(const TensorFile& file, const TensorEntry& entry, uint64_t row) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", entry.name, ": row ", row,
                                                 ": found a scale that is no finite number"));
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<TensorFile>>> OpenGgufTensors(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<gguf::File> file, gguf::File::Open(path));
  std::vector<std::vector<TensorEntry>> entries(file->parts().size());
  for (const gguf::Tensor& tensor : file->tensors()) {
    TensorEntry entry;
    entry.name = tensor.name;
    entry.dtype = std::string(tensor.type->name);
    entry.weight_dtype = WeightDType(tensor.type->name);
    entry.blocks = FindBlockFormat(tensor.type->name);
    entry.shape.assign(tensor.extents.rbegin(), tensor.extents.rend());
    // Files of some versions of the converter have this one as a vector.
    if (entry.shape.size() == 1 && absl::EndsWith(tensor.name, ".ffn_gate_inp_shexp.weight")) {
      entry.shape.insert(entry.shape.begin(), 1);
    }
    entry.begin = tensor.begin;
    entry.end = tensor.end;
    BATON_ASSIGN_OR_RETURN(entry.interleaved_heads,
                           InterleavedHeads(*file, entry.name, entry.shape[0]));
    BATON_RETURN_IF_ERROR(AddEntries(*file, std::move(entry), &entries[tensor.part]));
  }
  std::vector<std::unique_ptr<TensorFile>> files;
  uint64_t bytes_before = 0;
  for (gguf::Part& part : std::move(*file).TakeParts()) {
    files.push_back(std::make_unique<TensorFile>(
        std::move(part.map), std::move(entries[files.size()]), part.data_offset, bytes_before));
    bytes_before += part.data_bytes;
  }
  return files;
}

absl::StatusOr<ConvertedMatrix> ConvertMatrix(const TensorFile& file, const TensorEntry& entry,
                                              DType target, RoundingLoss* loss) {
  BATON_CHECK(entry.blocks == nullptr || entry.shape.size() == 2) << entry.name;
  const uint64_t rows = entry.shape[0];
  const uint64_t cols = entry.shape.size() == 2 ? entry.shape[1] : 1;
  const absl::string_view stored = file.Bytes(entry);
  const uint64_t stored_row_bytes = stored.size() / rows;
  ConvertedMatrix matrix;
  matrix.dtype = entry.blocks != nullptr ? target : entry.weight_dtype.value();
  const uint64_t row_bytes = cols * backend::SizeOf(matrix.dtype);
  matrix.values.resize(rows * row_bytes);
  std::vector<float> floats(entry.blocks != nullptr ? cols : 0);
  for (uint64_t row = 0; row < rows; ++row) {
    const char* source = stored.data() + StoredRow(entry, row) * stored_row_bytes;
    char* out = matrix.values.data() + row * row_bytes;
    if (entry.blocks == nullptr) {
      std::memcpy(out, source, row_bytes);
      continue;
    }
    if (!Dequantize(*entry.blocks, source, static_cast<int64_t>(cols), floats.data())) {
      return BadScale(file, entry, row);
    }
    backend::ConvertElements(floats.data(), DType::kF32, static_cast<int64_t>(cols), target, out);
    if (target == DType::kF16) CountOverflows(floats, target, loss);
  }
  return matrix;
}

absl::StatusOr<backend::SuperBlockHostMatrix> SuperBlocksOf(const TensorFile& file,
                                                            const TensorEntry& entry) {
  const BlockFormat& format = *entry.blocks;
  BATON_CHECK(format.split != nullptr && entry.shape.size() == 2) << entry.name;
  backend::SuperBlockHostMatrix matrix;
  matrix.bits = format.split_bits;
  matrix.rows = static_cast<int64_t>(entry.shape[0]);
  matrix.cols = static_cast<int64_t>(entry.shape[1]);
  matrix.super_columns = format.elements;
  const int64_t row_blocks = matrix.cols / format.elements;
  const auto* stored = reinterpret_cast<const uint8_t*>(file.Bytes(entry).data());
  const auto row_at = [stored, row_blocks, &format, &entry](int64_t row) {
    const auto from = static_cast<int64_t>(StoredRow(entry, static_cast<uint64_t>(row)));
    return stored + from * row_blocks * format.bytes;
  };
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const uint8_t* blocks = row_at(row);
    for (int64_t i = 0; i < row_blocks; ++i) {
      if (HasFiniteScales(format, blocks + i * format.bytes)) continue;
      return BadScale(file, entry, static_cast<uint64_t>(row));
    }
  }
  matrix.read = [row_at, row_blocks, &format](int64_t row, const backend::SuperBlockRow& out) {
    const uint8_t* blocks = row_at(row);
    for (int64_t i = 0; i < row_blocks; ++i) {
      format.split(blocks + i * format.bytes,
                   {out.values + i * format.elements, out.factors + i * (format.elements / 16),
                    out.scales + i, out.leasts + i});
    }
  };
  return matrix;
}

}  // namespace baton::model
