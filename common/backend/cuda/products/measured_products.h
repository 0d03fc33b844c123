// Products by whichever is the fastest on this device of a library's algorithms and, for few rows,
// our own kernels.
//
// Tune measures, for every product and bucket of rows (RowsBucket): the first kSuggestions
// algorithms that the library suggests, and up to kOwnRows rows our LaunchMatMul, in turns, a round
// to warm up and up to kRounds more; the least median wins, the library's first if it is within 2
// %. Before each measurement other weights are read until `evict_bytes` have passed, so that these
// come from memory as in a step; those of several layers are taken in turns. What was measured on
// such a device before, and was kept in the file, is not measured again.
//
// A product that Tune was not told of takes the library's first suggestion, unmeasured.
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
  // All that times depend on but for the library's version: chip, driver, our kernels.
  std::string device;
  std::string file;  // of choices_file.h; empty: nothing is kept
  // To be read before a measurement: more than the L2 cache holds, and enough that the launches
  // behind it are there before it ends.
  size_t evict_bytes = 0;
  // Ours; Tune counts its time, too.
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
  // Uses of one n, k and bias or none.
  struct Group {
    int least_rows = 0;
    int most_rows = 0;
    std::vector<MatMulLaunch> launches;
  };

  // Bucket or exact rows.
  static ProductKey KeyOf(const MatMulLaunch& launch, DType dtype, int rows);
  ProductChoices Kept();
  // Computes such a product once: kernels are loaded when they are first launched, which no request
  // is to wait for. False if the choice is none.
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
  ProductChoices choices_;              // by bucket
  ProductChoices of_rows_;              // that their bucket's does not serve
  std::set<std::pair<int, int>> told_;  // (n, k)
  // During Tune.
  std::vector<MatMulLaunch> weights_;  // the largest first
  double measured_seconds_ = 0;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_MEASURED_PRODUCTS_H_
