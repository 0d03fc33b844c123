#include "common/backend/cuda/matrices/device_weights.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/convert.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaMatrix::Make(absl::Span<const HostMatrix> stacked,
                                                               DType dtype, MatrixMemory& memory) {
  BATON_CHECK(!stacked.empty());
  const int64_t cols = stacked[0].cols;
  int64_t rows = 0;
  for (const HostMatrix& matrix : stacked) {
    BATON_CHECK_EQ(matrix.cols, cols);
    rows += matrix.rows;
  }
  if (cols % 8 != 0) {
    return MakeError(
        absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
        absl::StrCat("--device cuda: a matrix of ", cols, " columns, expected a multiple of 8"));
  }
  const size_t row_bytes = static_cast<size_t>(cols) * SizeOf(dtype);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                         memory.Allocate(static_cast<size_t>(rows) * row_bytes));
  auto* next = static_cast<std::byte*>(buffer->data());
  for (const HostMatrix& matrix : stacked) {
    const size_t size_bytes = static_cast<size_t>(matrix.rows) * row_bytes;
    const size_t element_bytes = SizeOf(dtype);
    memory.Fill(next, size_bytes, [&](size_t offset, size_t size, void* to) {
      const size_t first = offset / element_bytes;
      ConvertElements(static_cast<const std::byte*>(matrix.data) + first * SizeOf(matrix.dtype),
                      matrix.dtype, static_cast<int64_t>(size / element_bytes), dtype, to);
    });
    next += size_bytes;
  }
  return std::make_unique<CudaMatrix>(std::move(buffer), memory.on_host(), rows, cols);
}

absl::StatusOr<std::unique_ptr<RopeTable>> CudaRopeTable::Make(const RopeSpec& spec,
                                                               int max_positions, Backend& backend,
                                                               HostStaging& staging) {
  auto table = std::make_unique<CudaRopeTable>();
  const size_t half = spec.inverse_frequencies.size();
  table->half = static_cast<int>(half);
  table->positions = max_positions;
  if (half % 4 != 0) {
    return MakeError(
        absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
        absl::StrCat("--device cuda: ", 2 * half, " rotated dims, expected a multiple of 8"));
  }
  // `columns` values of each position, in double and then rounded, as on the CPU.
  const auto make = [&](size_t columns, auto value) -> absl::StatusOr<std::unique_ptr<Buffer>> {
    const size_t size_bytes = static_cast<size_t>(max_positions) * columns * sizeof(float);
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, backend.Allocate(size_bytes));
    staging.FillDevice(buffer->data(), size_bytes, [&](size_t offset, size_t size, void* part) {
      const size_t first = offset / sizeof(float);
      for (size_t i = 0; i < size / sizeof(float); ++i) {
        static_cast<float*>(part)[i] =
            static_cast<float>(value((first + i) / columns, (first + i) % columns));
      }
    });
    return buffer;
  };
  const auto factor = static_cast<double>(spec.factor);
  const auto angle = [&](size_t position, size_t column) {
    return static_cast<double>(position) * spec.inverse_frequencies[column];
  };
  BATON_ASSIGN_OR_RETURN(table->cosine, make(half, [&](size_t position, size_t column) {
                           return std::cos(angle(position, column)) * factor;
                         }));
  BATON_ASSIGN_OR_RETURN(table->sine, make(half, [&](size_t position, size_t column) {
                           return std::sin(angle(position, column)) * factor;
                         }));
  if (spec.query_beta != 0) {
    BATON_ASSIGN_OR_RETURN(table->query_scale, make(1, [&](size_t position, size_t) {
                             return spec.QueryScale(static_cast<int>(position));
                           }));
  }
  return table;
}

}  // namespace baton::backend::cuda
