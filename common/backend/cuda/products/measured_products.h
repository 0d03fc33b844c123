// Products by the fastest kernel on this device: one of a library's algorithms or, for few rows,
// Baton's.
//
// For every product and bucket of rows (RowsBucket), Tune measures the first kSuggestions
// algorithms of the library and, for up to kOwnRows rows, LaunchMatMul: in turns, a round to warm
// up and up to kRounds more. The least median wins; the library's first suggestion wins if it is
// within 2 %. Before each measurement other weights are read, `evict_bytes` of them, so that the
// product's come from memory as in a step; the weights of several layers take turns. Choices in the
// file for an equal device are not measured again.
//
// A product that was not tuned takes the library's first suggestion.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_MEASURED_PRODUCTS_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_MEASURED_PRODUCTS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/backend/cuda/products/product_choices.h"
#include "common/backend/cuda/products/product_library.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend::cuda {

// MeasuredProductsOptions::device.
std::string TimedDevice(const DeviceProperties& device);

struct MeasuredProductsOptions {
  // Identifies chip, driver and kernels; the library's version is added to it.
  std::string device;
  std::string file;  // of choices_file.h; empty: none
  // Bytes to read before a measurement: more than the L2 cache holds, and enough that the measured
  // launches are enqueued before the read ends.
  size_t evict_bytes = 0;
  // Baton's kernel.
  std::function<void(const MatMulLaunch&, DType, Stream)> own = [](const MatMulLaunch& launch,
                                                                   DType dtype, Stream stream) {
    LaunchMatMul(launch, dtype, stream);
  };
};

class MeasuredProducts final : public Products {
 public:
  static constexpr int kSuggestions = 8;
  static constexpr int kOwnRows = 32;  // beyond, a library's large tiles always win
  static constexpr int kRounds = 7;

  MeasuredProducts(std::unique_ptr<ProductLibrary> library, std::unique_ptr<Stopwatch> stopwatch,
                   MeasuredProductsOptions options);

  size_t WorkspaceBytes() const override { return library_->WorkspaceBytes(); }
  void SetWorkspace(void* device) override { library_->SetWorkspace(device); }
  void Tune(absl::Span<const ProductUse> uses, DType dtype, Stream stream) override;
  bool MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) override;

 private:
  struct Candidate;
  // Uses with equal n, k and has-bias.
  struct Group {
    int least_rows = 0;
    int most_rows = 0;
    std::vector<MatMulLaunch> launches;
  };

  // Bucket or exact rows.
  static ProductKey KeyOf(const MatMulLaunch& launch, DType dtype, int rows);
  ProductChoices Kept();
  // Computes such a product once, since a kernel is loaded by its first launch, for which no
  // request should wait. False if the choice does not serve it.
  bool Serves(const ProductChoice& choice, const MatMulLaunch& launch, DType dtype, Stream stream);
  void Keep(ProductChoices tuned);
  ProductChoice FirstOf(const MatMulLaunch& launch, DType dtype);
  bool Run(const ProductChoice& choice, const MatMulLaunch& launch, DType dtype, Stream stream);
  ProductChoice Measure(const Group& group, int rows, DType dtype, Stream stream);
  // Seconds a product; negative if the library refuses it.
  double TimeOnce(const Candidate& candidate, const Group& group, int rows, int round, DType dtype,
                  Stream stream);
  void Evict(const MatMulLaunch& spared, DType dtype, Stream stream);

  const std::unique_ptr<ProductLibrary> library_;
  const std::unique_ptr<Stopwatch> stopwatch_;
  const MeasuredProductsOptions options_;
  const std::string device_;
  ProductChoices choices_;                  // by bucket
  ProductChoices of_rows_;                  // by rows, where the bucket's does not serve them
  std::set<std::pair<int, int>> reported_;  // (n, k)
  // During Tune.
  std::vector<MatMulLaunch> weights_;  // the largest first
  double measured_seconds_ = 0;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_MEASURED_PRODUCTS_H_
