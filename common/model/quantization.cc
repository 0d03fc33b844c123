#include "common/model/quantization.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/gguf_blocks.h"
#include "common/model/model_tensors.h"

namespace baton::model {
namespace {

using backend::DType;

constexpr int kWordBits = 32;
// AWQ: where in a word the nibble of row 8 i + j is.
constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

uint32_t WordAt(absl::string_view bytes, int64_t index) {
  uint32_t word;
  std::memcpy(&word, bytes.data() + index * 4, sizeof(word));
  return word;
}

int64_t GroupSize(const WeightQuantization& quantization, int64_t cols) {
  return quantization.group_size == WeightQuantization::kAllColumns
             ? cols
             : std::min<int64_t>(quantization.group_size, cols);
}

// A word of GPTQ holds consecutive columns of one row, the first lowest: already ours, transposed.
// This goes by squares, so that both sides stay in the first-level cache.
void TransposeGptq(absl::string_view qweight, int64_t rows, int64_t words, uint32_t* out) {
  constexpr int64_t kSquare = 16;
  for (int64_t row = 0; row < rows; row += kSquare) {
    const int64_t row_end = std::min(rows, row + kSquare);
    for (int64_t word = 0; word < words; ++word) {
      for (int64_t r = row; r < row_end; ++r)
        out[r * words + word] = WordAt(qweight, word * rows + r);
    }
  }
}

// Eight rows by eight columns at a time: a word of each of eight columns to a word of each row.
void TransposeAwq(absl::string_view qweight, int64_t rows, int64_t cols, uint32_t* out) {
  const int64_t row_words = rows / 8, words = cols / 8;
  for (int64_t row = 0; row < row_words; ++row) {
    for (int64_t word = 0; word < words; ++word) {
      uint32_t columns[8];
      for (int64_t i = 0; i < 8; ++i)
        columns[i] = WordAt(qweight, (word * 8 + i) * row_words + row);
      for (size_t r = 0; r < 8; ++r) {
        uint32_t packed = 0;
        for (int i = 0; i < 8; ++i) packed |= (columns[i] >> kAwqPlace[r] * 4 & 0xf) << i * 4;
        out[(row * 8 + static_cast<int64_t>(r)) * words + word] = packed;
      }
    }
  }
}

bool IsFinite(uint16_t bits, DType dtype) {
  const int exponent = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
  return (bits & exponent) != exponent;
}

}  // namespace

absl::Status FindQuantizedMatrices(const Checkpoint& checkpoint, ModelConfig* model) {
  for (const auto& [name, stored] : checkpoint.tensors()) {
    model->has_blocks |= stored.entry->blocks != nullptr;
  }
  if (!model->quantization) return absl::OkStatus();
  const bool gguf = model->quantization->format == WeightQuantization::Format::kGguf;
  const bool mxfp4 = model->quantization->format == WeightQuantization::Format::kMxfp4;
  if (gguf && !checkpoint.is_gguf()) {
    return absl::UnimplementedError(absl::StrCat(
        checkpoint.path(), ": found quant_method \"gguf\" in config.json, expected a GGUF file"));
  }
  const BlockFormat* blocks = FindBlockFormat(model->quantization->fp4         ? kMxfp4Name
                                              : model->quantization->bits == 4 ? "Q4_0"
                                                                               : "Q8_0");
  const auto is_quantized = [&](const std::string& name) {
    if (mxfp4) return checkpoint.Find(absl::StrCat(name, "_blocks")) != nullptr;
    if (!gguf) return checkpoint.Find(absl::StrCat(name, ".qweight")) != nullptr;
    const StoredTensor* stored = checkpoint.Find(absl::StrCat(name, ".weight"));
    return stored != nullptr && stored->entry->blocks == blocks;
  };
  const auto find = [&](const std::vector<std::string>& modules, bool* quantized) {
    size_t count = 0;
    std::string other;
    for (const std::string& name : modules) {
      const bool has = is_quantized(name);
      if (has && !gguf && checkpoint.Find(absl::StrCat(name, ".weight")) != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            checkpoint.path(), ": ", name, ": found both qweight and weight, expected one"));
      }
      count += has;
      if (!has) other = name;
    }
    *quantized = count == modules.size();
    if (*quantized || count == 0 || gguf) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(checkpoint.path(), ": ", other, ": found no qweight, expected all of ",
                     modules.size(), " matrices that are loaded alike quantised, or none"));
  };
  const TensorNames names(*model, checkpoint);
  // A config may have more matrices than any file.
  size_t matrices = 0;
  for (size_t i = 0; i < model->layers.size(); ++i) {
    for (const SublayerSpec& sublayer : model->layers[i].sublayers) {
      ForEachProduct(sublayer, [&](const ProductSpec& product, int count) {
        const bool fused = names.IsFused(static_cast<int>(i), product);
        const auto parts = std::count_if(product.parts.begin(), product.parts.end(),
                                         [&](const MatrixSpec& part) { return names.Has(part); });
        matrices += static_cast<size_t>(fused ? 1 : parts * count);
      });
    }
  }
  if (matrices > checkpoint.tensors().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.path(), ": found ", checkpoint.tensors().size(), " tensors, expected those of ",
        matrices, " matrices, which ", model->architecture, " has by config.json"));
  }
  for (size_t i = 0; i < model->layers.size(); ++i) {
    for (SublayerSpec& sublayer : model->layers[i].sublayers) {
      absl::Status status;
      ForEachProduct(sublayer, [&](ProductSpec& product, int count) {
        std::vector<std::string> modules;
        // A GPU multiplies by no other matrices in MXFP4.
        if (model->quantization->fp4 && !IsOfExperts(sublayer, product)) {
          product.quantized = false;
          return;
        }
        // Rows in turn: blocks of a GGUF file become floats, which can be put in order.
        if (gguf && !product.turns.empty()) {
          product.quantized = false;
          return;
        }
        if (mxfp4 && (!product.fused || product.fused_by_rows)) {
          status.Update(absl::UnimplementedError(absl::StrCat(
              checkpoint.path(), ": found quant_method \"mxfp4\" for ", model->architecture,
              ", expected one whose experts are one tensor of a layer, as gpt-oss has")));
          return;
        }
        if (names.IsFused(static_cast<int>(i), product)) {
          modules.push_back(names.InLayer(static_cast<int>(i), product.fused));
          status.Update(find(modules, &product.quantized));
          return;
        }
        for (const MatrixSpec& part : product.parts) {
          for (int expert = 0; names.Has(part) && expert < count; ++expert) {
            modules.push_back(names.InLayer(static_cast<int>(i), part.name, expert));
          }
        }
        status.Update(find(modules, &product.quantized));
      });
      BATON_RETURN_IF_ERROR(status);
    }
  }
  if (model->quantization->fp4) return absl::OkStatus();
  if (!model->tied_embeddings) return find({names.lm_head()}, &model->lm_head_quantized);
  if (gguf) model->lm_head_quantized = is_quantized(names.embedding());
  return absl::OkStatus();
}

bool IsZeroBias(const Checkpoint& checkpoint, absl::string_view name) {
  if (!absl::EndsWith(name, ".bias")) return false;
  const absl::string_view module = absl::StripSuffix(name, ".bias");
  const StoredTensor* bias = checkpoint.Find(name);
  if (bias == nullptr || checkpoint.Find(absl::StrCat(module, ".qweight")) == nullptr) return false;
  if (!bias->file->CheckUnchanged().ok()) return false;
  const absl::string_view bytes = bias->file->Bytes(*bias->entry);
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

absl::StatusOr<QuantizedShapes> QuantizedShapesOf(const WeightQuantization& quantization,
                                                  int64_t rows, int64_t cols) {
  const int64_t a_word = kWordBits / quantization.bits;
  const int64_t group = GroupSize(quantization, cols);
  const bool awq = quantization.format == WeightQuantization::Format::kAwq;
  // AWQ's groups are whole. Its words go along the rows; ours, along the columns.
  if (rows % a_word != 0 || cols % a_word != 0 || (awq && cols % group != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "found a matrix of ", rows, " rows and ", cols, " columns, expected multiples of ", a_word,
        awq ? absl::StrCat(" and columns in groups of ", group) : std::string()));
  }
  const auto r = static_cast<uint64_t>(rows), c = static_cast<uint64_t>(cols);
  const auto per_word = static_cast<uint64_t>(a_word);
  const auto groups = static_cast<uint64_t>((cols + group - 1) / group);
  QuantizedShapes shapes;
  if (awq) {
    shapes.qweight = {c, r / per_word};
  } else {
    shapes.qweight = {c / per_word, r};
  }
  shapes.qzeros = {groups, r / per_word};
  shapes.scales = {groups, r};
  shapes.g_idx = {c};
  return shapes;
}

absl::StatusOr<QuantizedWeights> QuantizedWeights::Unpack(const WeightQuantization& quantization,
                                                          int64_t rows, int64_t cols,
                                                          const QuantizedTensors& tensors) {
  const int bits = quantization.bits;
  const int64_t a_word = kWordBits / bits;
  QuantizedWeights weights;
  weights.matrix_ = {.bits = bits,
                     .rows = rows,
                     .cols = cols,
                     .group_size = GroupSize(quantization, cols),
                     .scale_dtype = tensors.scale_dtype};
  const int64_t groups = weights.matrix_.groups();
  BATON_CHECK_EQ(static_cast<int64_t>(tensors.qweight.size()), rows * cols / a_word * 4);
  BATON_CHECK_EQ(static_cast<int64_t>(tensors.qzeros.size()), rows / a_word * groups * 4);
  BATON_CHECK_EQ(static_cast<int64_t>(tensors.scales.size()), rows * groups * 2);

  weights.scales_.resize(static_cast<size_t>(rows * groups));
  weights.zeros_.resize(static_cast<size_t>(rows * groups));
  const bool awq = quantization.format == WeightQuantization::Format::kAwq;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t row = 0; row < rows; ++row) {
      const auto to = static_cast<size_t>(row * groups + group);
      uint16_t scale;
      std::memcpy(&scale, tensors.scales.data() + (group * rows + row) * 2, sizeof(scale));
      if (!IsFinite(scale, tensors.scale_dtype)) {
        return absl::InvalidArgumentError(
            absl::StrCat("scales[", group, ", ", row, "]: found no finite number"));
      }
      weights.scales_[to] = scale;
      const int64_t in_word = row % a_word;
      const int place = awq ? kAwqPlace[static_cast<size_t>(in_word)] : static_cast<int>(in_word);
      const uint32_t word = WordAt(tensors.qzeros, group * (rows / a_word) + row / a_word);
      const uint32_t zero =
          (word >> place * bits & ((1u << bits) - 1)) + quantization.zeros_less_one;
      weights.zeros_[to] = static_cast<uint16_t>(zero);
    }
  }
  weights.values_.resize(static_cast<size_t>(rows * cols / a_word));
  if (awq) {
    TransposeAwq(tensors.qweight, rows, cols, weights.values_.data());
  } else {
    TransposeGptq(tensors.qweight, rows, cols / a_word, weights.values_.data());
    if (!tensors.g_idx.empty()) {
      BATON_RETURN_IF_ERROR(weights.SetOrder(tensors.g_idx, quantization.reordered));
    }
  }
  return weights;
}

// Sorts columns by their group, so that a group's columns are adjacent.
absl::Status QuantizedWeights::SetOrder(absl::string_view g_idx, bool may_differ) {
  const int64_t cols = matrix_.cols, groups = matrix_.groups();
  BATON_CHECK_EQ(static_cast<int64_t>(g_idx.size()), cols * 4);
  const auto group_of = [&](int64_t column) { return static_cast<int32_t>(WordAt(g_idx, column)); };
  bool in_order = true;
  for (int64_t i = 0; i < cols; ++i) {
    if (group_of(i) < 0 || group_of(i) >= groups) {
      return absl::InvalidArgumentError(
          absl::StrCat("g_idx[", i, "]: found ", group_of(i), ", expected 0 to ", groups - 1));
    }
    in_order &= group_of(i) == i / matrix_.group_size;
  }
  if (in_order) return absl::OkStatus();
  if (!may_differ) {
    return absl::InvalidArgumentError(
        "g_idx: found columns in another order, expected none where quantization_config.desc_act "
        "is false");
  }
  order_.resize(static_cast<size_t>(cols));
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int32_t a, int32_t b) { return group_of(a) < group_of(b); });
  for (int64_t i = 0; i < cols; ++i) {
    const int32_t group = group_of(order_[static_cast<size_t>(i)]);
    if (group == i / matrix_.group_size) continue;
    return absl::UnimplementedError(
        absl::StrCat("g_idx: found a group of another size before or at ", group,
                     ", expected groups of ", matrix_.group_size, " columns"));
  }
  Reorder();
  return absl::OkStatus();
}

absl::StatusOr<QuantizedWeights> QuantizedWeights::FromBlocks(const TensorFile& file,
                                                              const TensorEntry& entry) {
  if (entry.blocks->name == kMxfp4Name) return FromMxfp4Blocks(file, entry);
  constexpr int64_t kBlock = 32;
  const int bits = entry.blocks->name == "Q4_0" ? 4 : 8;
  QuantizedWeights weights;
  weights.matrix_ = {.bits = bits,
                     .rows = static_cast<int64_t>(entry.shape[0]),
                     .cols = static_cast<int64_t>(entry.shape[1]),
                     .group_size = kBlock,
                     .scale_dtype = DType::kF16,
                     .symmetric = true};
  const int64_t rows = weights.matrix_.rows, groups = weights.matrix_.groups();
  weights.values_.resize(static_cast<size_t>(rows * weights.matrix_.cols * bits / kWordBits));
  weights.scales_.resize(static_cast<size_t>(rows * groups));
  weights.zeros_.assign(weights.scales_.size(), static_cast<uint16_t>(1 << (bits - 1)));
  const auto* stored = reinterpret_cast<const uint8_t*>(file.Bytes(entry).data());
  auto* out = reinterpret_cast<uint8_t*>(weights.values_.data());
  for (int64_t row = 0; row < rows; ++row) {
    const auto from = static_cast<int64_t>(StoredRow(entry, static_cast<uint64_t>(row)));
    for (int64_t group = 0; group < groups; ++group) {
      const uint8_t* block = stored + (from * groups + group) * entry.blocks->bytes;
      uint16_t& scale = weights.scales_[static_cast<size_t>(row * groups + group)];
      std::memcpy(&scale, block, sizeof(scale));
      if (!IsFinite(scale, DType::kF16)) {
        return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", entry.name, ": row ", row,
                                                       ": found a scale that is no finite number"));
      }
      const uint8_t* values = block + sizeof(scale);
      for (int64_t i = 0; i < kBlock * bits / 8; ++i) {
        // 8-bit values are signed; of 4-bit ones, low nibbles are elements 0 to 15, high ones 16 to
        // 31.
        const int64_t pair = 2 * i % 16;
        *out++ = static_cast<uint8_t>(bits == 8 ? values[i] ^ 0x80
                                      : i < 8   ? (values[pair] & 0xf) | values[pair + 1] << 4
                                                : values[pair] >> 4 | (values[pair + 1] & 0xf0));
      }
    }
  }
  return weights;
}

void QuantizedWeights::Reorder() {
  const int bits = matrix_.bits, a_word = kWordBits / bits;
  const size_t words = static_cast<size_t>(matrix_.cols / a_word);
  std::vector<uint32_t> before(words);
  for (size_t begin = 0; begin < values_.size(); begin += words) {
    std::copy_n(&values_[begin], words, before.begin());
    std::fill_n(&values_[begin], words, 0);
    for (size_t i = 0; i < order_.size(); ++i) {
      const int from = order_[i], to = static_cast<int>(i);
      const uint32_t value = before[static_cast<size_t>(from / a_word)] >> from % a_word * bits;
      values_[begin + static_cast<size_t>(to / a_word)] |= (value & ((1u << bits) - 1))
                                                           << to % a_word * bits;
    }
  }
}

backend::QuantizedHostMatrix QuantizedWeights::view() const {
  backend::QuantizedHostMatrix view = matrix_;
  view.values = reinterpret_cast<const uint8_t*>(values_.data());
  view.scales = scales_.data();
  view.zeros = zeros_.data();
  view.order = order_.empty() ? nullptr : order_.data();
  return view;
}

}  // namespace baton::model
