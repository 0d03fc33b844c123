#include "common/backend/cpu/quantized_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/backend/cpu/convert.h"
#include "common/backend/quantized.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend {
namespace {

constexpr uint16_t kZeroOf4Bits = 8, kZeroOf8Bits = 128;

absl::Span<const uint16_t> ZerosOf(const QuantizedHostMatrix& matrix) {
  return absl::MakeSpan(matrix.zeros, static_cast<size_t>(matrix.rows * matrix.groups()));
}

bool AllAre(absl::Span<const uint16_t> zeros, uint16_t value) {
  return std::all_of(zeros.begin(), zeros.end(), [&](uint16_t zero) { return zero == value; });
}

bool SameOrder(const QuantizedHostMatrix& a, const QuantizedHostMatrix& b) {
  if (a.order == nullptr || b.order == nullptr) return a.order == b.order;
  return std::equal(a.order, a.order + a.cols, b.order);
}

// Value `k` of a column, in its place among the blocks of 4 bits at `blocks`.
void PutNibble(int value, int64_t k, int column, uint8_t* blocks) {
  uint8_t& both = blocks[k / 8 * kPanelColumns * 4 + column * 4 + k % 4];
  both = static_cast<uint8_t>(both | value << (k / 4 % 2 * 4));
}

int NibbleAt(int64_t k, int column, const uint8_t* blocks) {
  return blocks[k / 8 * kPanelColumns * 4 + column * 4 + k % 4] >> (k / 4 % 2 * 4) & 15;
}

// The scale of a column, among the 16-bit scales of a header.
float ScaleAt(const uint8_t* scales, DType dtype, int column) {
  float scale;
  ConvertElements(scales + column * 2, dtype, 1, DType::kF32, &scale);
  return scale;
}

}  // namespace

bool QuantizedPanels::CanHold(absl::Span<const QuantizedHostMatrix> stacked) {
  return std::all_of(stacked.begin(), stacked.end(), [&](const QuantizedHostMatrix& part) {
    const bool whole_blocks = part.group_size % kQuantizedBlock == 0 || part.groups() == 1;
    return whole_blocks && SameOrder(part, stacked[0]) && part.fp4 == stacked[0].fp4 &&
           (part.bits == 4 || AllAre(ZerosOf(part), kZeroOf8Bits));
  });
}

int64_t QuantizedPanels::header_bytes() const {
  if (slice_.fp4) return kPanelColumns;
  const bool two = slice_.super_blocks ? slice_.bits != 6 : slice_.zeros;
  return two ? 2 * kQuantizedScaleBytes : kQuantizedScaleBytes;
}

QuantizedPanels::QuantizedPanels(absl::Span<const QuantizedHostMatrix> stacked)
    : PanelMatrix(Form::kQuantized, 0, stacked[0].cols) {
  slice_.bits = stacked[0].bits;
  slice_.fp4 = stacked[0].fp4;
  slice_.scale_element = static_cast<Element>(stacked[0].scale_dtype);
  slice_.blocks = (stacked[0].cols + kQuantizedBlock - 1) / kQuantizedBlock;
  slice_.group_blocks = std::min(slice_.blocks, stacked[0].group_size / kQuantizedBlock);
  if (stacked[0].groups() == 1) slice_.group_blocks = slice_.blocks;
  for (const QuantizedHostMatrix& part : stacked) {
    BATON_CHECK_EQ(part.cols, in_features_);
    BATON_CHECK_EQ(part.bits, slice_.bits);
    BATON_CHECK_EQ(part.groups(), stacked[0].groups());
    BATON_CHECK(part.scale_dtype == stacked[0].scale_dtype);
    out_features_ += part.rows;
    if (slice_.fp4) {
      BATON_CHECK(part.fp4 && part.group_size == kFp4Group && part.scale_dtype == DType::kBF16);
      continue;
    }
    if (slice_.bits == 4 && !AllAre(ZerosOf(part), kZeroOf4Bits)) slice_.zeros = true;
  }
  slice_.panel_bytes = stacked[0].groups() * header_bytes() +
                       slice_.blocks * kQuantizedBlock * kPanelColumns * slice_.bits / 8;
  if (stacked[0].order != nullptr) order_.assign(stacked[0].order, stacked[0].order + in_features_);
}

QuantizedPanels::QuantizedPanels(absl::Span<const SuperBlockHostMatrix> stacked)
    : PanelMatrix(Form::kQuantized, 0, stacked[0].cols) {
  slice_.super_blocks = true;
  slice_.bits = stacked[0].bits;
  slice_.blocks = stacked[0].cols / kQuantizedBlock;
  slice_.group_blocks = stacked[0].super_columns / kQuantizedBlock;
  for (const SuperBlockHostMatrix& part : stacked) {
    BATON_CHECK_EQ(part.cols, in_features_);
    BATON_CHECK_EQ(part.bits, slice_.bits);
    BATON_CHECK_EQ(part.super_columns, stacked[0].super_columns);
    out_features_ += part.rows;
  }
  BATON_CHECK(slice_.bits >= 4 && slice_.bits <= 6) << slice_.bits << " bits";
  BATON_CHECK_EQ(in_features_ % stacked[0].super_columns, 0);
  BATON_CHECK_EQ(stacked[0].super_columns % kQuantizedBlock, 0);
  slice_.panel_bytes =
      slice_.blocks / slice_.group_blocks * header_bytes() +
      slice_.blocks * kPanelColumns * (kSuperBlockFactors + kQuantizedBlock * slice_.bits / 8);
}

absl::StatusOr<std::unique_ptr<QuantizedPanels>> QuantizedPanels::Pack(
    absl::Span<const QuantizedHostMatrix> stacked, ThreadPool& pool) {
  BATON_CHECK(!stacked.empty() && CanHold(stacked));
  std::unique_ptr<QuantizedPanels> packed(new QuantizedPanels(stacked));
  BATON_RETURN_IF_ERROR(packed->Fill(stacked, pool));
  return packed;
}

absl::StatusOr<std::unique_ptr<QuantizedPanels>> QuantizedPanels::Pack(
    absl::Span<const SuperBlockHostMatrix> stacked, ThreadPool& pool) {
  BATON_CHECK(!stacked.empty());
  std::unique_ptr<QuantizedPanels> packed(new QuantizedPanels(stacked));
  BATON_RETURN_IF_ERROR(packed->Fill(stacked, pool));
  return packed;
}

template <class Matrix>
absl::Status QuantizedPanels::Fill(absl::Span<const Matrix> stacked, ThreadPool& pool) {
  BATON_ASSIGN_OR_RETURN(memory_,
                         MappedMemory::Map(static_cast<size_t>(panel_count() * panel_bytes())));
  pool.Run(static_cast<int>(panel_count()), [&](int index, int thread) {
    uint8_t* panel = static_cast<uint8_t*>(memory_.data()) + index * panel_bytes();
    int64_t row = int64_t{index} * kPanelColumns;
    int column = 0;
    for (const Matrix& part : stacked) {
      for (; row < part.rows && column < kPanelColumns; ++row, ++column) {
        FillColumn(part, row, column, panel);
      }
      row -= part.rows;
    }
    // Columns behind the matrix have the scale 0, as mapped.
  });
  return absl::OkStatus();
}

// Columns behind `in` meet activations that are 0: their values do not count.
void QuantizedPanels::FillColumn(const QuantizedHostMatrix& matrix, int64_t row, int column,
                                 uint8_t* panel) const {
  const int64_t groups = matrix.groups();
  const uint8_t* values = matrix.values + row * matrix.row_bytes();
  for (int64_t group = 0; group < groups; ++group) {
    const uint16_t* scale = matrix.scales + row * groups + group;
    if (slice_.fp4) {
      panel[column] = static_cast<uint8_t>(*scale >> 7);
    } else {
      std::memcpy(panel + column * 2, scale, 2);
    }
    if (slice_.zeros) {
      const int zero = matrix.zeros[row * groups + group];
      panel[kQuantizedScaleBytes + column] = static_cast<uint8_t>(16 - zero);
    }
    panel += header_bytes();
    const int64_t first = group * slice_.group_blocks * kQuantizedBlock;
    const int64_t end =
        std::min(slice_.blocks, (group + 1) * slice_.group_blocks) * kQuantizedBlock;
    for (int64_t k = first; k < std::min(end, matrix.cols); ++k) {
      const int64_t in_group = k - first;
      if (slice_.bits == 8) {
        panel[in_group / 4 * kPanelColumns * 4 + column * 4 + in_group % 4] = values[k];
      } else {
        PutNibble(values[k / 2] >> (k % 2 * 4) & 15, in_group, column, panel);
      }
    }
    panel += (end - first) * kPanelColumns * slice_.bits / 8;
  }
}

void QuantizedPanels::FillColumn(const SuperBlockHostMatrix& matrix, int64_t row, int column,
                                 uint8_t* panel) const {
  const auto blocks = static_cast<size_t>(slice_.blocks);
  const size_t supers = blocks / static_cast<size_t>(slice_.group_blocks);
  std::vector<uint8_t> values(blocks * kQuantizedBlock);
  std::vector<int8_t> factors(blocks * kSuperBlockFactors);
  std::vector<uint16_t> scales(supers), leasts(supers);
  matrix.read(row, {values.data(), factors.data(), scales.data(), leasts.data()});
  const int high_bits = slice_.bits - 4, steps = high_bits == 0 ? 8 : 8 / high_bits;
  for (size_t block = 0; block < blocks; ++block) {
    if (block % static_cast<size_t>(slice_.group_blocks) == 0) {
      const size_t super = block / static_cast<size_t>(slice_.group_blocks);
      std::memcpy(panel + column * 2, &scales[super], 2);
      if (slice_.bits != 6) {
        const auto negated = static_cast<uint16_t>(leasts[super] ^ 0x8000);
        std::memcpy(panel + kQuantizedScaleBytes + column * 2, &negated, 2);
      }
      panel += header_bytes();
    }
    for (int i = 0; i < kSuperBlockFactors; ++i, panel += kPanelColumns) {
      panel[column] = static_cast<uint8_t>(factors[block * kSuperBlockFactors + i]);
    }
    uint8_t* high = panel + kQuantizedBlock * kPanelColumns / 2;
    for (int k = 0; k < kQuantizedBlock; ++k) {
      const int value = values[block * kQuantizedBlock + k];
      PutNibble(value & 15, k, column, panel);
      if (high_bits == 0) continue;
      const int step = k / 4;
      uint8_t& byte = high[step / steps * kPanelColumns * 4 + column * 4 + k % 4];
      byte = static_cast<uint8_t>(byte | value >> 4 << step % steps * high_bits);
    }
    panel += kQuantizedBlock * kPanelColumns * slice_.bits / 8;
  }
}

void QuantizedPanels::ReadRow(int64_t row, float* out) const {
  BATON_CHECK(row >= 0 && row < out_features_) << "row " << row;
  const auto* panel =
      static_cast<const uint8_t*>(memory_.data()) + row / kPanelColumns * panel_bytes();
  const int column = static_cast<int>(row % kPanelColumns);
  if (slice_.super_blocks) return ReadSuperColumn(panel, column, out);
  const int64_t group_columns = slice_.group_blocks * kQuantizedBlock;
  for (int64_t first = 0; first < in_features_; first += group_columns) {
    float scale = 0;
    int zero = slice_.bits == 8 ? kZeroOf8Bits : kZeroOf4Bits;
    if (slice_.fp4) {
      scale = std::bit_cast<float>(static_cast<uint32_t>(panel[column]) << 23);
      zero = kFp4Zero;
    } else {
      scale = ScaleAt(panel, static_cast<DType>(slice_.scale_element), column);
    }
    if (slice_.zeros) zero = 16 - panel[kQuantizedScaleBytes + column];
    panel += header_bytes();
    const int64_t end = std::min(in_features_, first + group_columns);
    for (int64_t i = first; i < end; ++i) {
      const int64_t k = i - first;
      int value = slice_.bits == 8 ? panel[k / 4 * kPanelColumns * 4 + column * 4 + k % 4]
                                   : NibbleAt(k, column, panel);
      if (slice_.fp4) value = kFp4Values[value];
      out[order_.empty() ? i : order_[static_cast<size_t>(i)]] =
          static_cast<float>(value - zero) * scale;
    }
    panel += group_columns * kPanelColumns * slice_.bits / 8;
  }
}

void QuantizedPanels::ReadSuperColumn(const uint8_t* panel, int column, float* out) const {
  const int high_bits = slice_.bits - 4, steps = high_bits == 0 ? 8 : 8 / high_bits;
  float scale = 0, least = 0;
  for (int64_t block = 0; block < slice_.blocks; ++block) {
    if (block % slice_.group_blocks == 0) {
      scale = ScaleAt(panel, DType::kF16, column);
      if (slice_.bits != 6) least = ScaleAt(panel + kQuantizedScaleBytes, DType::kF16, column);
      panel += header_bytes();
    }
    const auto factor = [&](int i) {
      return static_cast<float>(static_cast<int8_t>(panel[i * kPanelColumns + column]));
    };
    const float first = scale * factor(0);
    const float second = slice_.bits == 6 ? scale * factor(1) : least * factor(1);
    panel += kSuperBlockFactors * kPanelColumns;
    const uint8_t* high = panel + kQuantizedBlock * kPanelColumns / 2;
    for (int k = 0; k < kQuantizedBlock; ++k) {
      int value = NibbleAt(k, column, panel);
      const int step = k / 4;
      if (high_bits > 0) {
        const uint8_t byte = high[step / steps * kPanelColumns * 4 + column * 4 + k % 4];
        value |= (byte >> step % steps * high_bits & ((1 << high_bits) - 1)) << 4;
      }
      out[block * kQuantizedBlock + k] =
          slice_.bits == 6
              ? (k < kQuantizedBlock / 2 ? first : second) * static_cast<float>(value - 32)
              : first * static_cast<float>(value) + second;
    }
    panel += kQuantizedBlock * kPanelColumns * slice_.bits / 8;
  }
}

QuantizedSlice QuantizedPanels::SliceFrom(int64_t panel) const {
  QuantizedSlice slice = slice_;
  slice.panels = static_cast<const uint8_t*>(memory_.data()) + panel * panel_bytes();
  return slice;
}

}  // namespace baton::backend
