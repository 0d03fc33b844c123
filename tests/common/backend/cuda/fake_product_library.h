// A library of matrix products on the host, whose algorithms take what time the test says, on a
// clock that only they move.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_FAKE_PRODUCT_LIBRARY_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_FAKE_PRODUCT_LIBRARY_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/backend/cuda/products/measured_products.h"
#include "common/backend/cuda/products/product_library.h"

namespace baton::backend::cuda {

// In doubles, k ascending.
inline void MultiplyOnHost(const MatMulLaunch& launch, DType dtype) {
  const auto row_of = [&](const void* matrix, int64_t at) {
    std::vector<float> values(static_cast<size_t>(launch.k));
    ConvertElements(static_cast<const uint16_t*>(matrix) + at, dtype, launch.k, DType::kF32,
                    values.data());
    return values;
  };
  std::vector<std::vector<float>> w;
  for (int column = 0; column < launch.n; ++column) {
    w.push_back(row_of(launch.w, int64_t{column} * launch.k));
  }
  for (int row = 0; row < launch.rows; ++row) {
    const std::vector<float> x = row_of(launch.x, row * launch.x_stride);
    for (int column = 0; column < launch.n; ++column) {
      double sum = launch.bias == nullptr ? 0 : static_cast<double>(launch.bias[column]);
      for (size_t i = 0; i < x.size(); ++i) {
        sum += static_cast<double>(x[i]) * static_cast<double>(w[static_cast<size_t>(column)][i]);
      }
      launch.out[row * launch.out_stride + column] = static_cast<float>(sum);
    }
  }
}

// The state shared by the fakes of one test. Algorithm `id` has the words {kMark, id}; kOwn is
// Baton's kernel.
struct FakeDevice {
  static constexpr uint64_t kMark = 0x5eed;
  static constexpr int kOwn = -1;
  static AlgorithmWords WordsOf(int id) { return {kMark, static_cast<uint64_t>(id)}; }

  double now = 0;
  int algorithms = 4;  // that are suggested, 0 first
  // Seconds of a product; what it refuses is negative.
  std::function<double(int id, const MatMulLaunch&)> seconds = [](int, const MatMulLaunch&) {
    return 1e-3;
  };
  std::set<int> unknown;         // that Accepts refuses
  std::set<int> refuses_to_run;  // whatever Accepts says
  std::string version = "fake 1";

  // Since the test cleared them.
  struct Call {
    int id;
    MatMulLaunch launch;
    bool evicting;
  };
  std::vector<Call> calls;
  int suggestions = 0;  // times that it was asked
  int measurements = 0;
  bool evicting = false;

  bool Multiply(int id, const MatMulLaunch& launch, DType dtype) {
    const double taken = seconds(id, launch);
    if (taken < 0 || refuses_to_run.count(id) > 0) return false;
    now += taken;
    calls.push_back({id, launch, evicting});
    MultiplyOnHost(launch, dtype);
    return true;
  }
};

class FakeProductLibrary final : public ProductLibrary {
 public:
  explicit FakeProductLibrary(FakeDevice& device) : device_(device) {}
  std::string Version() const override { return device_.version; }
  size_t WorkspaceBytes() const override { return 1024; }
  void SetWorkspace(void* device) override { workspace_ = device; }
  std::vector<AlgorithmWords> Suggest(const MatMulLaunch&, DType, int most) override {
    ++device_.suggestions;
    std::vector<AlgorithmWords> found;
    for (int id = 0; id < std::min(most, device_.algorithms); ++id) {
      found.push_back(FakeDevice::WordsOf(id));
    }
    return found;
  }
  bool Accepts(const MatMulLaunch& launch, DType, const AlgorithmWords& words) override {
    const int id = static_cast<int>(words[1]);
    return words == FakeDevice::WordsOf(id) && id >= 0 && id < device_.algorithms &&
           device_.unknown.count(id) == 0 && device_.seconds(id, launch) >= 0;
  }
  bool Run(const MatMulLaunch& launch, DType dtype, const AlgorithmWords& words, Stream) override {
    return device_.Multiply(static_cast<int>(words[1]), launch, dtype);
  }

 private:
  FakeDevice& device_;
  void* workspace_ = nullptr;
};

class FakeStopwatch final : public Stopwatch {
 public:
  explicit FakeStopwatch(FakeDevice& device) : device_(device) {}
  double Time(Stream, absl::FunctionRef<void()> before, absl::FunctionRef<void()> work) override {
    ++device_.measurements;
    device_.evicting = true;
    before();
    device_.evicting = false;
    const double begin = device_.now;
    work();
    return device_.now - begin;
  }

 private:
  FakeDevice& device_;
};

inline std::unique_ptr<MeasuredProducts> MakeFakeProducts(FakeDevice& device,
                                                          const std::string& file,
                                                          const std::string& name = "fake device",
                                                          size_t evict_bytes = 0) {
  MeasuredProductsOptions options;
  options.device = name;
  options.file = file;
  options.evict_bytes = evict_bytes;
  options.own = [&device](const MatMulLaunch& launch, DType dtype, Stream) {
    device.Multiply(FakeDevice::kOwn, launch, dtype);
  };
  return std::make_unique<MeasuredProducts>(std::make_unique<FakeProductLibrary>(device),
                                            std::make_unique<FakeStopwatch>(device),
                                            std::move(options));
}

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_FAKE_PRODUCT_LIBRARY_H_
