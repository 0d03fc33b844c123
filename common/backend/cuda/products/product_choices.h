// Which kernel computes which product, as it was measured, and how that is written down: the
// choices of up to kMaxDevices kinds of device, in bytes that anybody may have changed.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_CHOICES_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_CHOICES_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// Products of 1 to kMaxBucketRows rows share an algorithm with those of the next number of these:
// 1, 2, 4, 8, 16, then powers of two and the numbers halfway between, from 1024 on powers of two
// alone. They contain the batches that decode steps are padded to.
inline constexpr int kMaxBucketRows = 1 << 30;
// The least of them from `rows` on. REQUIRES: 1 <= rows <= kMaxBucketRows.
int RowsBucket(int rows);

// An algorithm in its library's words (cublasLtMatmulAlgo_t), which mean something to it alone.
using AlgorithmWords = std::array<uint64_t, 8>;

struct ProductKey {
  DType dtype = DType::kF16;  // kF16 or kBF16
  int rows = 0;               // a bucket
  int n = 0;
  int k = 0;
  bool bias = false;

  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

struct ProductChoice {
  bool own = false;           // our own kernel; else the library's
  AlgorithmWords words = {};  // 0 if own
  uint64_t nanoseconds = 0;   // what it took, for people

  friend bool operator==(const ProductChoice&, const ProductChoice&) = default;
};

using ProductChoices = std::map<ProductKey, ProductChoice>;

// The choices for one kind of device. `device` says all that they depend on: chip, driver,
// libraries, kernels.
struct DeviceChoices {
  std::string device;  // 1 to kMaxDeviceName bytes
  ProductChoices choices;

  friend bool operator==(const DeviceChoices&, const DeviceChoices&) = default;
};

inline constexpr size_t kMaxDevices = 16;
inline constexpr size_t kMaxDeviceName = 512;
inline constexpr size_t kMaxChoices = 8192;  // of a device: some 80 models' worth
// What all that comes to, about.
inline constexpr size_t kMaxChoicesBytes = size_t{16} << 20;

// Little-endian: "BATONALG", version u32, length of the rest u32, XXH3-64 of it; then a count of
// devices, and each: length and bytes of the name, count of choices, 88 bytes a choice, keys
// ascending. REQUIRES: the bounds above; devices differ.
std::string EncodeChoices(absl::Span<const DeviceChoices> devices);
// DATA_LOSS, saying what was expected where, for anything that EncodeChoices would not have made.
absl::StatusOr<std::vector<DeviceChoices>> DecodeChoices(absl::string_view bytes);

// `ours` before all others, with what was known of the same device besides; what goes beyond the
// bounds is dropped, the oldest devices first. REQUIRES: `ours` is within them.
std::vector<DeviceChoices> MergeChoices(DeviceChoices ours, std::vector<DeviceChoices> before);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_CHOICES_H_
