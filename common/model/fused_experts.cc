#include "common/model/fused_experts.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/string_view.h"
#include "common/backend/quantized.h"
#include "common/backend/tensor.h"

namespace baton::model {
namespace {

// Columns that are transposed at a time: a cache line of each.
constexpr size_t kTogether = 32;

std::vector<uint64_t> ShapeOf(std::initializer_list<int64_t> extents) {
  std::vector<uint64_t> shape;
  for (const int64_t extent : extents) shape.push_back(static_cast<uint64_t>(extent));
  return shape;
}

}  // namespace

std::vector<uint64_t> FusedPart::FloatShape() const {
  return by_rows ? ShapeOf({experts, rows, cols}) : ShapeOf({experts, cols, rows});
}
std::vector<uint64_t> FusedPart::BlocksShape() const {
  return ShapeOf({experts, rows, cols / backend::kFp4Group, backend::kFp4Group / 2});
}
std::vector<uint64_t> FusedPart::ScalesShape() const {
  return ShapeOf({experts, rows, cols / backend::kFp4Group});
}
size_t FusedPart::StoredRow(size_t row) const {
  return in_turn ? FusedRow(row, static_cast<size_t>(rows)) : row;
}

const char* FusedFloats(const FusedPart& part, const StoredTensor& stored,
                        std::vector<char>* values) {
  const size_t element = backend::SizeOf(*stored.entry->weight_dtype);
  const auto rows = static_cast<size_t>(part.rows), cols = static_cast<size_t>(part.cols);
  const char* const from = stored.file->Bytes(*stored.entry).data() +
                           static_cast<size_t>(part.expert) * rows * cols * element;
  if (part.by_rows) return from;
  values->resize(rows * cols * element);
  for (size_t first = 0; first < rows; first += kTogether) {
    const size_t end = std::min(rows, first + kTogether);
    for (size_t col = 0; col < cols; ++col) {
      for (size_t row = first; row < end; ++row) {
        std::memcpy(values->data() + (row * cols + col) * element,
                    from + (col * rows + part.StoredRow(row)) * element, element);
      }
    }
  }
  return values->data();
}

}  // namespace baton::model
