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
                                                               DType dtype, Backend& backend,
                                                               HostStaging& staging) {
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
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> memory,
                         backend.Allocate(static_cast<size_t>(rows) * row_bytes));
  auto* device = static_cast<std::byte*>(memory->data());
  for (const HostMatrix& matrix : stacked) {
    const size_t size_bytes = static_cast<size_t>(matrix.rows) * row_bytes;
    const size_t element_bytes = SizeOf(dtype);
    staging.FillDevice(device, size_bytes, [&](size_t offset, size_t size, void* to) {
      const size_t first = offset / element_bytes;
      ConvertElements(static_cast<const std::byte*>(matrix.data) + first * SizeOf(matrix.dtype),
                      matrix.dtype, static_cast<int64_t>(size / element_bytes), dtype, to);
    });
    device += size_bytes;
  }
  return std::make_unique<CudaMatrix>(std::move(memory), rows, cols);
}

absl::StatusOr<std::unique_ptr<RopeTable>> CudaRopeTable::Make(
    absl::Span<const double> inverse_frequencies, int max_positions, float factor, Backend& backend,
    HostStaging& staging) {
  auto table = std::make_unique<CudaRopeTable>();
  table->half = static_cast<int>(inverse_frequencies.size());
  table->positions = max_positions;
  if (table->half % 4 != 0) {
    return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                     absl::StrCat("--device cuda: ", 2 * table->half,
                                  " rotated dims, expected a multiple of 8"));
  }
  const size_t size_bytes =
      static_cast<size_t>(max_positions) * inverse_frequencies.size() * sizeof(float);
  BATON_ASSIGN_OR_RETURN(table->cosine, backend.Allocate(size_bytes));
  BATON_ASSIGN_OR_RETURN(table->sine, backend.Allocate(size_bytes));
  // In double and then rounded, as on the CPU.
  const auto fill = [&](const Buffer& to, auto function) {
    staging.FillDevice(to.data(), size_bytes, [&](size_t offset, size_t size, void* part) {
      auto* values = static_cast<float*>(part);
      const size_t first = offset / sizeof(float);
      for (size_t i = 0; i < size / sizeof(float); ++i) {
        const size_t position = (first + i) / inverse_frequencies.size();
        const double angle = static_cast<double>(position) *
                             inverse_frequencies[(first + i) % inverse_frequencies.size()];
        values[i] = static_cast<float>(function(angle) * static_cast<double>(factor));
      }
    });
  };
  fill(*table->cosine, [](double angle) { return std::cos(angle); });
  fill(*table->sine, [](double angle) { return std::sin(angle); });
  return table;
}

}  // namespace baton::backend::cuda
