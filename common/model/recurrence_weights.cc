// The part of WeightLoader that takes what only recurrent layers have.
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/convert.h"
#include "common/model/weight_loader.h"

namespace baton::model {

using backend::Buffer;
using backend::DType;

absl::Status WeightLoader::CheckFinite(const Part& part, absl::Span<const float> values) const {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(checkpoint_.Find(part.name)->file->path(), ": ",
                                                   part.name, "[", i, "]: found ", values[i],
                                                   ", expected a finite number"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> WeightLoader::Taps(const std::string& name, int64_t channels,
                                                      int64_t taps) {
  std::vector<uint64_t> shape = {static_cast<uint64_t>(channels), static_cast<uint64_t>(taps)};
  if (!checkpoint_.is_gguf()) shape.insert(shape.begin() + 1, 1);
  BATON_ASSIGN_OR_RETURN(const TakenMatrix taken, Take(name, shape, DType::kF32));
  std::vector<float> by_channel(static_cast<size_t>(channels * taps)), values(by_channel.size());
  ToF32(taken.matrix.data, taken.matrix.dtype, by_channel.size(), by_channel.data());
  Report(taken.file_bytes);
  for (int64_t channel = 0; channel < channels; ++channel) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      values[static_cast<size_t>(tap * channels + channel)] =
          by_channel[static_cast<size_t>(channel * taps + tap)];
    }
  }
  return values;
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::Decay(const Part& part) {
  BATON_ASSIGN_OR_RETURN(std::vector<float> values, Floats({part}));
  if (!checkpoint_.is_gguf()) {  // GGUF files have it as it is multiplied with
    for (float& value : values) value = -std::exp(value);
  }
  BATON_RETURN_IF_ERROR(CheckFinite(part, values));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] <= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(checkpoint_.Find(part.name)->file->path(), ": ",
                                                   part.name, "[", i, "]: found ", values[i],
                                                   ", expected a number that is not positive"));
  }
  return ToDevice(values);
}

absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> WeightLoader::MatrixInTurns(
    const Part& part, const ProductSpec& product) {
  if (product.quantized) {
    return absl::UnimplementedError(
        absl::StrCat(checkpoint_.path(), ": ", part.name,
                     ": found few bits, expected floats where rows of several kinds are in turn"));
  }
  BATON_ASSIGN_OR_RETURN(
      TakenMatrix taken,
      Take(part.name, {static_cast<uint64_t>(part.rows), static_cast<uint64_t>(product.cols)},
           backend_.activation_dtype()));
  const int64_t row_bytes =
      product.cols * static_cast<int64_t>(backend::SizeOf(taken.matrix.dtype));
  const int64_t turn = std::accumulate(product.turns.begin(), product.turns.end(), int64_t{0});
  std::vector<char> values;
  int64_t before = 0;
  for (const int64_t rows : product.turns) {
    for (int64_t first = before; first < part.rows; first += turn) {
      const char* from = static_cast<const char*>(taken.matrix.data) + first * row_bytes;
      values.insert(values.end(), from, from + rows * row_bytes);
    }
    before += rows;
  }
  taken.matrix.data = values.data();
  auto packed =
      PackFloats({taken.matrix}, {part}, product.rounds ? load_bits_ : 0, /*range=*/nullptr);
  Report(taken.file_bytes);
  return packed;
}

}  // namespace baton::model
