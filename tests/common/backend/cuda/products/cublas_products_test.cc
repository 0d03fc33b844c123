// How cuBLASLt is called: on a GPU the library itself, elsewhere one that multiplies on the host
// (fake_cublas_lt.cc). The memory is the host's, which a GPU reaches where it is pinned.
#include "common/backend/cuda/products/cublas_products.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/products/choices_file.h"
#include "tests/common/backend/cuda/fake_product_library.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

class CublasProductsTest : public ::testing::Test {
 protected:
  CublasProductsTest() {
    if (CudaDeviceCount().value_or(0) > 0) {
      runtime_ = OpenDevice(0).value();
      stream_ = runtime_->MakeStream();
      // Where the library is slower, the test multiplies with Baton's kernels, of which those for a
      // T4 have no products of bfloat16.
      has_bf16_ = runtime_->properties().kernel_capability >= 80;
    }
  }
  ~CublasProductsTest() override {
    for (void* memory : memory_) std::free(memory);
  }

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  template <class T>
  T* Allocate(size_t count) {
    const size_t bytes = (count * sizeof(T) + 255) / 256 * 256;
    if (runtime_ != nullptr) return static_cast<T*>(runtime_->AllocatePinned(bytes).value());
    memory_.push_back(std::aligned_alloc(256, bytes));
    return static_cast<T*>(memory_.back());
  }
  void Wait() {
    if (runtime_ != nullptr) runtime_->Synchronize(stream_);
  }
  // Small integers, of which every order of summation is exact.
  uint16_t* Matrix(int rows, int64_t stride, DType dtype) {
    std::vector<float> values(static_cast<size_t>(rows * stride));
    for (float& value : values) value = static_cast<float>(Int(-4, 4));
    auto* matrix = Allocate<uint16_t>(values.size());
    ConvertElements(values.data(), DType::kF32, rows * stride, dtype, matrix);
    return matrix;
  }
  MatMulLaunch Product(int rows, int n, int k, DType dtype) {
    MatMulLaunch launch = {};
    launch.x_stride = k + 8 * Int(0, 2);
    launch.out_stride = n + 8 * Int(0, 2);
    launch.rows = rows;
    launch.n = n;
    launch.k = k;
    launch.x = Matrix(rows, launch.x_stride, dtype);
    launch.w = Matrix(n, k, dtype);
    launch.out = Allocate<float>(static_cast<size_t>(rows * launch.out_stride));
    if (Int(0, 1) == 1) {
      float* bias = Allocate<float>(static_cast<size_t>(n));
      for (int i = 0; i < n; ++i) bias[i] = static_cast<float>(Int(-9, 9));
      launch.bias = bias;
    }
    return launch;
  }
  DType AnyDType() { return has_bf16_ && Int(0, 1) == 1 ? DType::kBF16 : DType::kF16; }
  std::vector<float> Expected(const MatMulLaunch& launch, DType dtype) {
    Clear(launch);
    MultiplyOnHost(launch, dtype);
    return Out(launch);
  }
  static void Clear(const MatMulLaunch& launch) {
    std::fill_n(launch.out, launch.rows * launch.out_stride, -12345.0f);
  }
  static std::vector<float> Out(const MatMulLaunch& launch) {
    return std::vector<float>(launch.out, launch.out + launch.rows * launch.out_stride);
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  std::unique_ptr<Runtime> runtime_;
  Stream stream_ = nullptr;
  bool has_bf16_ = true;
  std::vector<void*> memory_;
};

TEST_F(CublasProductsTest, WhatIsSuggestedMultiplies) {
  SCOPED_TRACE(seed_);
  const auto cublas = MakeCublas().value();
  cublas->SetWorkspace(Allocate<std::byte>(cublas->WorkspaceBytes()));
  for (int round = 0; round < 20; ++round) {
    const DType dtype = AnyDType();
    const MatMulLaunch launch = Product(Int(1, 70), 8 * Int(1, 12), 8 * Int(1, 12), dtype);
    const std::vector<float> expected = Expected(launch, dtype);
    const std::vector<AlgorithmWords> found = cublas->Suggest(launch, dtype, 8);
    EXPECT_TRUE(found.size() >= 1 && found.size() <= 8) << found.size();
    EXPECT_EQ(cublas->Suggest(launch, dtype, 1).size(), 1u);
    for (const AlgorithmWords& words : found) {
      EXPECT_TRUE(cublas->Accepts(launch, dtype, words));
      Clear(launch);
      ASSERT_TRUE(cublas->Run(launch, dtype, words, stream_));
      Wait();
      EXPECT_EQ(Out(launch), expected)
          << launch.rows << " x " << launch.k << " times " << launch.n << ", " << Name(dtype);
    }
  }
}

// For other rows, or words that it never named: refused, or right.
TEST_F(CublasProductsTest, WhatIsAcceptedMultipliesOrRefuses) {
  SCOPED_TRACE(seed_);
  const auto cublas = MakeCublas().value();
  cublas->SetWorkspace(Allocate<std::byte>(cublas->WorkspaceBytes()));
  int refused = 0;
  for (int round = 0; round < 20; ++round) {
    const DType dtype = AnyDType();
    MatMulLaunch launch = Product(64, 8 * Int(1, 12), 8 * Int(1, 12), dtype);
    std::vector<AlgorithmWords> some = cublas->Suggest(launch, dtype, 8);
    launch.rows = Int(1, 63);
    const std::vector<float> expected = Expected(launch, dtype);
    some.push_back({});
    some.push_back({random_(), random_(), random_(), random_()});
    for (const AlgorithmWords& words : some) {
      const bool accepted = cublas->Accepts(launch, dtype, words);
      refused += !accepted;
      if (!accepted || !cublas->Run(launch, dtype, words, stream_)) continue;
      Wait();
      EXPECT_EQ(Out(launch), expected);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(CublasProductsTest, OnAGpuASecondStartMeasuresNothing) {
  if (runtime_ == nullptr) GTEST_SKIP() << "a GPU measures";
  std::string pattern = (std::filesystem::temp_directory_path() / "cublas_XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(pattern.data());
  const std::string file = (folder / "algorithms").string();
  const DType dtype = AnyDType();
  const std::vector<MatMulLaunch> launches = {
      Product(40, 256, 128, dtype), Product(40, 256, 128, dtype), Product(40, 128, 512, dtype)};
  std::vector<ProductUse> uses;
  for (const MatMulLaunch& launch : launches) uses.push_back({.launch = launch});
  ino_t written = 0;
  for (int start = 0; start < 2; ++start) {
    const auto products = MakeCublasProducts(runtime_->properties(), 0, file).value();
    products->SetWorkspace(Allocate<std::byte>(products->WorkspaceBytes()));
    products->Tune(uses, dtype, stream_);
    struct stat found = {};
    ASSERT_EQ(stat(file.c_str(), &found), 0);
    // A file that is written is another file.
    EXPECT_TRUE(start == 0 || found.st_ino == written);
    written = found.st_ino;
    const auto kept = ReadChoices(file).value();
    for (const auto& [key, choice] : kept.at(0).choices) EXPECT_GT(choice.nanoseconds, 0u);
    for (const int rows : {1, 5, 33, 40}) {
      MatMulLaunch launch = launches[static_cast<size_t>(rows) % launches.size()];
      launch.rows = rows;
      const std::vector<float> expected = Expected(launch, dtype);
      Clear(launch);
      if (!products->MatMul(launch, dtype, stream_)) LaunchMatMul(launch, dtype, stream_);
      Wait();
      EXPECT_EQ(Out(launch), expected);
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace baton::backend::cuda
