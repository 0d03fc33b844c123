// QuantizedWeights of MXFP4.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/backend/quantized.h"
#include "common/base/status_macros.h"
#include "common/model/gguf_blocks.h"
#include "common/model/quantization.h"

namespace baton::model {
namespace {

constexpr int64_t kBlock = backend::kFp4Group, kBlockBytes = kBlock / 2;

// Half of a block's scale, in bfloat16.
uint16_t HalfScale(int exponent) {
  return static_cast<uint16_t>(exponent < 2 ? 0 : (exponent - 1) << 7);
}

absl::Status NoScale(const TensorFile& file, const TensorEntry& entry, int64_t row, int exponent) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", entry.name, ": row ", row,
                                                 ": found a scale of exponent ", exponent,
                                                 ", expected at most ", kMxfp4MaxExponent));
}

}  // namespace

QuantizedWeights QuantizedWeights::EmptyFp4(int64_t rows, int64_t cols) {
  QuantizedWeights weights;
  weights.matrix_ = {.bits = 4,
                     .rows = rows,
                     .cols = cols,
                     .group_size = kBlock,
                     .scale_dtype = backend::DType::kBF16,
                     .fp4 = true};
  weights.values_.resize(static_cast<size_t>(rows * cols / 8));
  weights.scales_.resize(static_cast<size_t>(rows * weights.matrix_.groups()));
  weights.zeros_.assign(weights.scales_.size(), backend::kFp4Zero);
  return weights;
}

absl::StatusOr<QuantizedWeights> QuantizedWeights::FromMxfp4Blocks(const TensorFile& file,
                                                                   const TensorEntry& entry) {
  QuantizedWeights weights =
      EmptyFp4(static_cast<int64_t>(entry.shape[0]), static_cast<int64_t>(entry.shape[1]));
  const int64_t groups = weights.matrix_.groups();
  const auto* stored = reinterpret_cast<const uint8_t*>(file.Bytes(entry).data());
  auto* out = reinterpret_cast<uint8_t*>(weights.values_.data());
  auto scale = weights.scales_.begin();
  for (int64_t row = 0; row < weights.matrix_.rows; ++row) {
    const auto from = static_cast<int64_t>(StoredRow(entry, static_cast<uint64_t>(row)));
    for (int64_t group = 0; group < groups; ++group) {
      const uint8_t* block = stored + (from * groups + group) * entry.blocks->bytes;
      if (block[0] > kMxfp4MaxExponent) return NoScale(file, entry, row, block[0]);
      *scale++ = HalfScale(block[0]);
      // Low halves are elements 0 to 15, high ones 16 to 31.
      const uint8_t* values = block + 1;
      for (int64_t i = 0; i < kBlockBytes; ++i) {
        const int64_t pair = 2 * i % 16;
        *out++ = static_cast<uint8_t>(i < kBlockBytes / 2
                                          ? (values[pair] & 0xf) | values[pair + 1] << 4
                                          : values[pair] >> 4 | (values[pair + 1] & 0xf0));
      }
    }
  }
  return weights;
}

absl::StatusOr<QuantizedWeights> QuantizedWeights::FromMxfp4(const FusedPart& part,
                                                             const StoredTensor& blocks,
                                                             const StoredTensor& scales) {
  if (part.cols % kBlock != 0) {
    return absl::InvalidArgumentError(absl::StrCat(blocks.file->path(), ": ", blocks.entry->name,
                                                   ": found rows of ", part.cols,
                                                   " columns, expected a multiple of ", kBlock));
  }
  QuantizedWeights weights = EmptyFp4(part.rows, part.cols);
  const auto rows = static_cast<size_t>(part.rows);
  const auto groups = static_cast<size_t>(weights.matrix_.groups());
  const size_t first = static_cast<size_t>(part.expert) * rows;
  const char* const codes = blocks.file->Bytes(*blocks.entry).data();
  const auto* exponents =
      reinterpret_cast<const uint8_t*>(scales.file->Bytes(*scales.entry).data());
  const size_t row_bytes = groups * kBlockBytes;
  auto* out = reinterpret_cast<char*>(weights.values_.data());
  for (size_t row = 0; row < rows; ++row) {
    const size_t from = first + part.StoredRow(row);
    std::memcpy(out + row * row_bytes, codes + from * row_bytes, row_bytes);
    for (size_t group = 0; group < groups; ++group) {
      const int exponent = exponents[from * groups + group];
      if (exponent > kMxfp4MaxExponent) {
        return NoScale(*scales.file, *scales.entry, static_cast<int64_t>(from), exponent);
      }
      weights.scales_[row * groups + group] = HalfScale(exponent);
    }
  }
  return weights;
}

}  // namespace baton::model
