// The measured choice of a kernel for each product, and its encoding: the choices of up to
// kMaxDevices kinds of device. Decoding trusts nothing in the bytes.
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

// Rows are grouped into buckets that share an algorithm: 1, 2, 4, 8, 16, then powers of two and the
// numbers halfway between, from 1024 on powers of two alone. Decode steps are padded to such
// numbers.
inline constexpr int kMaxBucketRows = 1 << 30;
// The least bucket that holds `rows`. REQUIRES: 1 <= rows <= kMaxBucketRows.
int RowsBucket(int rows);

// An algorithm (cublasLtMatmulAlgo_t), opaque outside the library.
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
  uint64_t nanoseconds = 0;   // measured; information only

  friend bool operator==(const ProductChoice&, const ProductChoice&) = default;
};

using ProductChoices = std::map<ProductKey, ProductChoice>;

// The choices for one kind of device. `device` identifies chip, driver, libraries and kernels.
struct DeviceChoices {
  std::string device;  // 1 to kMaxDeviceName bytes
  ProductChoices choices;

  friend bool operator==(const DeviceChoices&, const DeviceChoices&) = default;
};

inline constexpr size_t kMaxDevices = 16;
inline constexpr size_t kMaxDeviceName = 512;
inline constexpr size_t kMaxChoices = 8192;  // of a device: some 80 models' worth
// About the size of all that.
inline constexpr size_t kMaxChoicesBytes = size_t{16} << 20;

// Little-endian: "BATONALG", version u32, length of the rest u32, XXH3-64 of it; then a count of
// devices, and each: length and bytes of the name, count of choices, 88 bytes a choice, keys
// ascending. REQUIRES: the bounds above; devices differ.
std::string EncodeChoices(absl::Span<const DeviceChoices> devices);
// DATA_LOSS, saying what was expected where, for anything that EncodeChoices would not have made.
absl::StatusOr<std::vector<DeviceChoices>> DecodeChoices(absl::string_view bytes);

// `ours` first, merged with earlier choices for the same device; then the other devices. Drops what
// exceeds the bounds, the oldest devices first. REQUIRES: `ours` is within them.
std::vector<DeviceChoices> MergeChoices(DeviceChoices ours, std::vector<DeviceChoices> before);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_CHOICES_H_
