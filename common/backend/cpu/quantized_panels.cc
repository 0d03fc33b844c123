#include "common/backend/cpu/quantized_panels.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

}  // namespace

bool QuantizedPanels::CanHold(absl::Span<const QuantizedHostMatrix> stacked) {
  return std::all_of(stacked.begin(), stacked.end(), [&](const QuantizedHostMatrix& part) {
    const bool whole_blocks = part.group_size % kQuantizedBlock == 0 || part.groups() == 1;
    return whole_blocks && SameOrder(part, stacked[0]) &&
           (part.bits == 4 || AllAre(ZerosOf(part), kZeroOf8Bits));
  });
}

QuantizedPanels::QuantizedPanels(absl::Span<const QuantizedHostMatrix> stacked)
    : CpuMatrix(0, stacked[0].cols),
      bits_(stacked[0].bits),
      zeros_(false),
      scale_element_(static_cast<Element>(stacked[0].scale_dtype)),
      blocks_((stacked[0].cols + kQuantizedBlock - 1) / kQuantizedBlock),
      group_blocks_(std::min(blocks_, stacked[0].group_size / kQuantizedBlock)) {
  if (stacked[0].groups() == 1) group_blocks_ = blocks_;
  for (const QuantizedHostMatrix& part : stacked) {
    BATON_CHECK_EQ(part.cols, in_features_);
    BATON_CHECK_EQ(part.bits, bits_);
    BATON_CHECK_EQ(part.groups(), stacked[0].groups());
    BATON_CHECK(part.scale_dtype == stacked[0].scale_dtype);
    out_features_ += part.rows;
    if (bits_ == 4 && !AllAre(ZerosOf(part), kZeroOf4Bits)) zeros_ = true;
  }
  panel_bytes_ =
      stacked[0].groups() * header_bytes() + blocks_ * kQuantizedBlock * kPanelColumns * bits_ / 8;
  if (stacked[0].order != nullptr) order_.assign(stacked[0].order, stacked[0].order + in_features_);
}

absl::StatusOr<std::unique_ptr<QuantizedPanels>> QuantizedPanels::Pack(
    absl::Span<const QuantizedHostMatrix> stacked, ThreadPool& pool) {
  BATON_CHECK(!stacked.empty() && CanHold(stacked));
  std::unique_ptr<QuantizedPanels> packed(new QuantizedPanels(stacked));
  const auto size_bytes = static_cast<size_t>(packed->panel_count() * packed->panel_bytes_);
  BATON_ASSIGN_OR_RETURN(packed->memory_, MappedMemory::Map(size_bytes));
  pool.Run(static_cast<int>(packed->panel_count()),
           [&](int panel, int thread) { packed->FillPanel(stacked, panel); });
  return packed;
}

void QuantizedPanels::FillPanel(absl::Span<const QuantizedHostMatrix> stacked, int64_t index) {
  uint8_t* panel = static_cast<uint8_t*>(memory_.data()) + index * panel_bytes_;
  int64_t row = index * kPanelColumns;
  int column = 0;
  for (const QuantizedHostMatrix& part : stacked) {
    for (; row < part.rows && column < kPanelColumns; ++row, ++column) {
      FillColumn(part, row, column, panel);
    }
    row -= part.rows;
  }
  // Columns behind the matrix have the scale 0, as mapped.
}

// Columns behind `in` meet activations that are 0: their values do not count.
void QuantizedPanels::FillColumn(const QuantizedHostMatrix& matrix, int64_t row, int column,
                                 uint8_t* panel) {
  const int64_t groups = matrix.groups();
  const uint8_t* values = matrix.values + row * matrix.row_bytes();
  for (int64_t group = 0; group < groups; ++group) {
    std::memcpy(panel + column * 2, matrix.scales + row * groups + group, 2);
    if (zeros_) {
      const int zero = matrix.zeros[row * groups + group];
      panel[kQuantizedScaleBytes + column] = static_cast<uint8_t>(16 - zero);
    }
    panel += header_bytes();
    const int64_t end = std::min(blocks_, (group + 1) * group_blocks_);
    for (int64_t k = group * group_blocks_ * kQuantizedBlock; k < end * kQuantizedBlock; ++k) {
      if (k >= matrix.cols) continue;
      const int64_t in_group = k - group * group_blocks_ * kQuantizedBlock;
      if (bits_ == 8) {
        panel[in_group / 4 * kPanelColumns * 4 + column * 4 + in_group % 4] = values[k];
      } else {
        const uint8_t value = values[k / 2] >> (k % 2 * 4) & 15;
        uint8_t& both = panel[in_group / 8 * kPanelColumns * 4 + column * 4 + in_group % 4];
        both = static_cast<uint8_t>(both | value << (in_group / 4 % 2 * 4));
      }
    }
    panel += (end - group * group_blocks_) * kQuantizedBlock * kPanelColumns * bits_ / 8;
  }
}

QuantizedSlice QuantizedPanels::SliceFrom(int64_t panel) const {
  QuantizedSlice slice;
  slice.blocks = blocks_;
  slice.group_blocks = group_blocks_;
  slice.bits = bits_;
  slice.zeros = zeros_;
  slice.scale_element = scale_element_;
  slice.panels = static_cast<const uint8_t*>(memory_.data()) + panel * panel_bytes_;
  slice.panel_bytes = panel_bytes_;
  return slice;
}

}  // namespace baton::backend
