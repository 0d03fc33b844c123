#include "common/backend/cuda/products/measured_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/backend/cuda/products/choices_file.h"
#include "tests/common/backend/cuda/fake_product_library.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

constexpr int kOwn = FakeDevice::kOwn;

// Operands of one product, with room for so many rows.
class Product {
 public:
  Product(int rows, int n, int k, bool bias, std::mt19937_64& random)
      : x_(static_cast<size_t>(rows * (k + 8))),
        w_(static_cast<size_t>(n * k)),
        bias_(static_cast<size_t>(bias ? n : 0)),
        out_(static_cast<size_t>(rows * (n + 8))) {
    std::uniform_int_distribution<int> small(-4, 4);
    for (std::vector<uint16_t>* values : {&x_, &w_}) {
      for (uint16_t& value : *values) {
        const auto number = static_cast<float>(small(random));
        ConvertElements(&number, DType::kF32, 1, DType::kF16, &value);
      }
    }
    for (float& value : bias_) value = static_cast<float>(small(random));
    launch_ = {.x = x_.data(),
               .x_stride = k + 8,
               .w = w_.data(),
               .bias = bias ? bias_.data() : nullptr,
               .out = out_.data(),
               .out_stride = n + 8,
               .rows = rows,
               .n = n,
               .k = k};
  }
  Product(Product&&) = default;
  MatMulLaunch launch(int rows) const {
    MatMulLaunch launch = launch_;
    launch.rows = rows;
    return launch;
  }
  MatMulLaunch launch() const { return launch_; }
  ProductUse use() const { return {.launch = launch_}; }

 private:
  std::vector<uint16_t> x_, w_;
  std::vector<float> bias_, out_;
  MatMulLaunch launch_;
};

class MeasuredProductsTest : public ::testing::Test {
 protected:
  MeasuredProductsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "products_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    file_ = (folder_ / "algorithms").string();
  }
  ~MeasuredProductsTest() override { std::filesystem::remove_all(folder_); }

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Product Make(int rows, int n, int k, bool bias = false) {
    return Product(rows, n, k, bias, random_);
  }
  // The kernel that multiplied; Baton's if the library refused.
  int Multiply(Products& products, const MatMulLaunch& launch) {
    device_.calls.clear();
    const int measurements = device_.measurements;
    if (!products.MatMul(launch, DType::kF16, nullptr)) return kOwn;
    EXPECT_EQ(device_.measurements, measurements) << "MatMul may be under capture";
    return device_.calls.size() == 1 ? device_.calls[0].id : -2;
  }
  static void Tune(Products& products, const std::vector<ProductUse>& uses) {
    products.Tune(uses, DType::kF16, nullptr);
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  std::filesystem::path folder_;
  std::string file_;
  FakeDevice device_;
};

TEST_F(MeasuredProductsTest, TheFastestOfAllIsTaken) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 20; ++round) {
    // Each id its own time for each bucket, none near another.
    std::map<std::pair<int, int>, double> seconds;
    device_.algorithms = Int(1, 12);
    device_.seconds = [&](int id, const MatMulLaunch& launch) {
      double& time = seconds[{id, RowsBucket(launch.rows)}];
      if (time == 0) time = 1e-5 * (1 + 0.1 * Int(1, 10'000));
      return time;
    };
    const auto products = MakeFakeProducts(device_, "");
    const Product product = Make(Int(1, 100), 8, 8);
    Tune(*products, {product.use()});
    for (int rows = 1; rows <= product.launch().rows; ++rows) {
      const int bucket = RowsBucket(rows);
      double least = 1e9;
      // The library suggests twelve, of which it is asked for eight.
      for (int id = bucket <= 32 ? kOwn : 0; id < std::min(8, device_.algorithms); ++id) {
        least = std::min(least, seconds.at({id, bucket}));
      }
      const int chosen = Multiply(*products, product.launch(rows));
      EXPECT_LE(seconds.at({chosen, bucket}), least * 1.02)
          << rows << " rows: " << chosen << ", seed " << seed_;
      EXPECT_FALSE(chosen == kOwn && bucket > 32);
    }
  }
}

TEST_F(MeasuredProductsTest, FewRowsAreOursWhereWeAreFasterAndManyNever) {
  device_.seconds = [](int id, const MatMulLaunch&) { return id == kOwn ? 1e-6 : 2e-6; };
  const auto products = MakeFakeProducts(device_, "");
  const Product product = Make(80, 8, 8);
  Tune(*products, {product.use()});
  for (const int rows : {1, 7, 32}) EXPECT_EQ(Multiply(*products, product.launch(rows)), kOwn);
  for (const int rows : {33, 48, 80}) EXPECT_EQ(Multiply(*products, product.launch(rows)), 0);
}

TEST_F(MeasuredProductsTest, OutliersDoNotChoose) {
  // Algorithm 2 is the fastest but for every fourth time; the first is slow but for every fourth.
  std::map<int, int> calls;
  device_.seconds = [&](int id, const MatMulLaunch&) {
    const bool odd = ++calls[id] % 4 == 0;
    if (id == 2) return odd ? 50e-6 : 10e-6;
    if (id == 0) return odd ? 9e-6 : 14e-6;
    return 14e-6;
  };
  const auto products = MakeFakeProducts(device_, "");
  const Product product = Make(1, 8, 8);
  Tune(*products, {product.use()});
  EXPECT_EQ(Multiply(*products, product.launch()), 2);
}

// The time to load a kernel, once, does not reduce the rounds.
TEST_F(MeasuredProductsTest, LoadingIsNotCounted) {
  std::set<int> loaded;
  device_.seconds = [&](int id, const MatMulLaunch&) {
    return loaded.insert(id).second ? 0.4 : 1e-3;
  };
  const auto products = MakeFakeProducts(device_, "");
  const Product product = Make(100, 8, 8);
  Tune(*products, {{.launch = product.launch(), .least_rows = 100}});
  EXPECT_EQ(device_.measurements, device_.algorithms * (1 + MeasuredProducts::kRounds));
}

TEST_F(MeasuredProductsTest, TheFirstSuggestionStaysIfNoneIsBetterForSure) {
  double gain = 0.99;
  device_.seconds = [&](int id, const MatMulLaunch&) { return id == 0 ? 1e-5 : 1e-5 * gain; };
  const Product product = Make(1, 8, 8);
  for (const auto& [better, chosen] : {std::pair(0.99, 0), std::pair(0.95, 1)}) {
    gain = better;
    const auto products = MakeFakeProducts(device_, "");
    Tune(*products, {product.use()});
    EXPECT_EQ(Multiply(*products, product.launch()), chosen) << gain;
  }
}

TEST_F(MeasuredProductsTest, WhatRefusesWhileItIsMeasuredIsNotTaken) {
  device_.seconds = [](int id, const MatMulLaunch& launch) {
    return id == 1 && launch.rows > 2 ? -1.0 : id == 1 ? 1e-6 : 5e-6;
  };
  const auto products = MakeFakeProducts(device_, "");
  const Product product = Make(8, 8, 8);
  Tune(*products, {product.use()});
  EXPECT_EQ(Multiply(*products, product.launch(2)), 1);
  EXPECT_EQ(Multiply(*products, product.launch(3)), 0);
  EXPECT_EQ(Multiply(*products, product.launch(8)), 0);
}

TEST_F(MeasuredProductsTest, WhatRefusesFewerRowsThanItsBucketIsReplacedForThese) {
  device_.seconds = [](int id, const MatMulLaunch& launch) {
    return id == 3 ? (launch.rows == 64 ? 1e-6 : -1.0) : id == kOwn ? 1.0 : 5e-6;
  };
  const auto products = MakeFakeProducts(device_, "");
  const Product product = Make(64, 8, 8);
  Tune(*products, {product.use()});
  EXPECT_EQ(Multiply(*products, product.launch(64)), 3);
  EXPECT_EQ(Multiply(*products, product.launch(50)), 0);
  EXPECT_EQ(Multiply(*products, product.launch(50)), 0);
  EXPECT_EQ(Multiply(*products, product.launch(64)), 3);
}

TEST_F(MeasuredProductsTest, WhereTheLibraryHasNoneAllIsOurs) {
  device_.algorithms = 0;
  const auto products = MakeFakeProducts(device_, file_);
  const Product product = Make(40, 8, 8);
  Tune(*products, {product.use()});
  for (const int rows : {1, 32, 33, 40}) {
    EXPECT_EQ(Multiply(*products, product.launch(rows)), kOwn);
  }
}

TEST_F(MeasuredProductsTest, AProductThatNobodyAnnouncedTakesTheFirstSuggestion) {
  device_.seconds = [](int id, const MatMulLaunch&) { return id == 1 ? 1e-6 : 5e-6; };
  const auto products = MakeFakeProducts(device_, "");
  const Product known = Make(4, 8, 8), other = Make(64, 16, 8), biased = Make(4, 8, 8, true);
  Tune(*products, {known.use()});
  EXPECT_EQ(Multiply(*products, known.launch(3)), 1);
  const int asked = device_.suggestions;
  EXPECT_EQ(Multiply(*products, other.launch(40)), 0);
  EXPECT_EQ(Multiply(*products, other.launch(47)), 0);
  EXPECT_EQ(device_.suggestions, asked + 1) << "once a bucket";
  EXPECT_EQ(Multiply(*products, biased.launch(3)), 0) << "a bias is another product";
  EXPECT_EQ(Multiply(*products, known.launch(3)), 1);
}

TEST_F(MeasuredProductsTest, ASecondStartMeasuresNothing) {
  SCOPED_TRACE(seed_);
  const Product a = Make(64, 8, 16), b = Make(64, 16, 8, true);
  device_.seconds = [](int id, const MatMulLaunch& launch) {
    return 1e-6 * (1 + (id * 7 + launch.rows * 3 + launch.n + 100) % 11);
  };
  const auto first = MakeFakeProducts(device_, file_);
  Tune(*first, {a.use(), b.use()});
  EXPECT_GT(device_.measurements, 0);
  device_.measurements = 0;
  device_.calls.clear();
  const auto second = MakeFakeProducts(device_, file_);
  Tune(*second, {a.use(), b.use()});
  EXPECT_EQ(device_.measurements, 0);
  EXPECT_EQ(device_.calls.size(), 2u * 9) << "each is computed once, so that its kernel is loaded";
  for (const int rows : {1, 2, 3, 20, 33, 64}) {
    for (const Product* product : {&a, &b}) {
      EXPECT_EQ(Multiply(*first, product->launch(rows)), Multiply(*second, product->launch(rows)));
    }
  }
  // What is new is measured, and what was known stays in the file.
  const Product c = Make(4, 24, 8);
  const auto third = MakeFakeProducts(device_, file_);
  Tune(*third, {c.use()});
  EXPECT_GT(device_.measurements, 0);
  device_.measurements = 0;
  const auto fourth = MakeFakeProducts(device_, file_);
  Tune(*fourth, {a.use(), b.use(), c.use()});
  EXPECT_EQ(device_.measurements, 0);
}

TEST_F(MeasuredProductsTest, AnotherDeviceOrLibraryOrNoFileMeasuresAnew) {
  const Product product = Make(4, 8, 8);
  const auto measurements = [&](const std::string& file, const std::string& name,
                                const std::string& version) {
    device_.version = version;
    device_.measurements = 0;
    Tune(*MakeFakeProducts(device_, file, name), {product.use()});
    return device_.measurements;
  };
  EXPECT_GT(measurements(file_, "T4", "1"), 0);
  EXPECT_EQ(measurements(file_, "T4", "1"), 0);
  EXPECT_GT(measurements(file_, "T4", "2"), 0);
  EXPECT_GT(measurements(file_, "H200", "1"), 0);
  EXPECT_GT(measurements("", "T4", "1"), 0);
  EXPECT_GT(measurements(file_ + "2", "T4", "1"), 0);
  EXPECT_EQ(measurements(file_, "T4", "1"), 0) << "all devices are kept";
  EXPECT_EQ(measurements(file_, "T4", "2"), 0);
  EXPECT_EQ(measurements(file_, "H200", "1"), 0);
}

TEST_F(MeasuredProductsTest, TheDeviceIsAllThatTimesDependOn) {
  const DeviceProperties t4 = {.name = "Tesla T4",
                               .compute_capability = 75,
                               .kernel_capability = 75,
                               .multiprocessors = 40,
                               .driver = 13000};
  std::vector<DeviceProperties> others(5, t4);
  others[0].name = "Tesla T4G";
  others[1].compute_capability = 90;
  others[2].kernel_capability = 80;
  others[3].multiprocessors = 20;
  others[4].driver = 13010;
  for (const DeviceProperties& other : others) EXPECT_NE(TimedDevice(other), TimedDevice(t4));
}

TEST_F(MeasuredProductsTest, WordsThatTheLibraryDoesNotAcceptAreMeasuredAnew) {
  const Product product = Make(1, 8, 8);
  device_.seconds = [](int id, const MatMulLaunch&) { return id == 2 ? 1e-6 : 5e-6; };
  Tune(*MakeFakeProducts(device_, file_), {product.use()});
  device_.unknown = {2};
  device_.measurements = 0;
  device_.seconds = [](int id, const MatMulLaunch&) { return id == 1 ? 1e-6 : 5e-6; };
  const auto products = MakeFakeProducts(device_, file_);
  Tune(*products, {product.use()});
  EXPECT_GT(device_.measurements, 0);
  EXPECT_EQ(Multiply(*products, product.launch()), 1);
  // Accepted, but refused when it comes to it.
  device_.unknown = {};
  device_.refuses_to_run = {1};
  device_.measurements = 0;
  const auto other = MakeFakeProducts(device_, file_);
  Tune(*other, {product.use()});
  EXPECT_GT(device_.measurements, 0);
  EXPECT_NE(Multiply(*other, product.launch()), 1);
  device_.refuses_to_run = {};
  // Random words, as in a damaged file.
  std::vector<DeviceChoices> devices = ReadChoices(file_).value();
  for (auto& [key, choice] : devices[0].choices) choice.words = {random_(), random_()};
  ASSERT_TRUE(WriteChoices(file_, devices).ok());
  const auto again = MakeFakeProducts(device_, file_);
  Tune(*again, {product.use()});
  EXPECT_EQ(Multiply(*again, product.launch()), 1);
  EXPECT_EQ(ReadChoices(file_)->at(0).choices.begin()->second.words, FakeDevice::WordsOf(1));
}

TEST_F(MeasuredProductsTest, ABadFileIsReplacedAndAPlaceThatCannotBeWrittenIsNoHindrance) {
  const Product product = Make(1, 8, 8);
  std::ofstream(file_) << "BATONALG but for the rest";
  for (const std::string& file : {file_, file_ + "/below/a/file"}) {
    device_.measurements = 0;
    const auto products = MakeFakeProducts(device_, file);
    Tune(*products, {product.use()});
    EXPECT_GT(device_.measurements, 0);
    EXPECT_EQ(Multiply(*products, product.launch()), 0);
  }
  EXPECT_EQ(ReadChoices(file_).value().size(), 1u);
}

TEST_F(MeasuredProductsTest, WeightsComeFromMemory) {
  std::vector<Product> layers;
  for (int i = 0; i < 6; ++i) layers.push_back(Make(96, 8, 8));
  const Product larger = Make(96, 64, 8), largest = Make(96, 128, 8);
  std::vector<ProductUse> uses = {larger.use(), largest.use()};
  for (const Product& layer : layers) uses.push_back(layer.use());
  // More than the largest has, less than the two largest have.
  const auto products = MakeFakeProducts(device_, "", "fake device", 2500);
  Tune(*products, uses);
  std::vector<FakeDevice::Call> evicting, measured;
  int runs = 0;
  std::set<const void*> used;
  const auto check = [&] {
    if (measured.empty()) return;
    ++runs;
    size_t bytes = 0;
    for (const FakeDevice::Call& call : evicting) {
      EXPECT_NE(call.launch.n, measured[0].launch.n);
      EXPECT_EQ(call.launch.rows, 1);
      EXPECT_EQ(call.id, kOwn);
      bytes += static_cast<size_t>(call.launch.n * call.launch.k) * 2;
    }
    EXPECT_TRUE(bytes >= 2500 || measured[0].launch.n >= 64) << "or all that there is";
    std::set<const void*> weights;
    for (const FakeDevice::Call& call : measured) {
      weights.insert(call.launch.w);
      if (call.launch.n == 8) used.insert(call.launch.w);
    }
    EXPECT_EQ(weights.size(), measured.size()) << "none twice";
    EXPECT_EQ(measured.size(),
              measured[0].launch.n == 8 && measured[0].launch.rows <= 64 ? 4u : 1u);
    evicting.clear();
    measured.clear();
  };
  for (const FakeDevice::Call& call : device_.calls) {
    if (call.evicting && !measured.empty()) check();
    (call.evicting ? evicting : measured).push_back(call);
  }
  check();
  EXPECT_EQ(runs, device_.measurements);
  EXPECT_EQ(used.size(), layers.size()) << "all take turns";
}

TEST_F(MeasuredProductsTest, OnlyRowsThatThereWillBeAreMeasured) {
  const auto products = MakeFakeProducts(device_, file_);
  const Product product = Make(100, 8, 8);
  Tune(*products, {{.launch = product.launch(), .least_rows = 65}});
  std::vector<int> rows;
  const std::vector<DeviceChoices> devices = ReadChoices(file_).value();
  for (const auto& [key, choice] : devices.at(0).choices) rows.push_back(key.rows);
  EXPECT_THAT(rows, ::testing::ElementsAre(96, 128));
  for (const FakeDevice::Call& call : device_.calls) {
    if (!call.evicting) {
      EXPECT_TRUE(call.launch.rows == 96 || call.launch.rows == 100);
    }
  }
}

TEST_F(MeasuredProductsTest, ProductsAreRightWhoeverComputesThem) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 10; ++round) {
    std::map<std::tuple<int, int, int>, double> seconds;
    device_.seconds = [&](int id, const MatMulLaunch& launch) {
      double& time = seconds[{id, launch.rows, launch.n}];
      if (time == 0) time = Int(0, 9) == 0 ? -1 : 1e-6 * Int(1, 50);
      return id == kOwn ? std::abs(time) : time;
    };
    std::vector<Product> all;
    std::vector<ProductUse> uses;
    for (int i = 0; i < 3; ++i) {
      all.push_back(Make(Int(1, 70), 8 * Int(1, 3), 8 * Int(1, 4), Int(0, 1) == 1));
      uses.push_back(all.back().use());
    }
    const auto products = MakeFakeProducts(device_, Int(0, 1) ? file_ : "");
    Tune(*products, uses);
    for (const Product& product : all) {
      const MatMulLaunch launch = product.launch(Int(1, product.launch().rows));
      const size_t size = static_cast<size_t>(launch.rows * launch.out_stride);
      std::fill_n(launch.out, size, NAN);
      MultiplyOnHost(launch, DType::kF16);
      const std::vector<float> expected(launch.out, launch.out + size);
      std::fill_n(launch.out, size, NAN);
      if (!products->MatMul(launch, DType::kF16, nullptr)) {
        LaunchMatMul(launch, DType::kF16, nullptr);
      }
      for (size_t i = 0; i < size; ++i) {
        // Small integers: every order of summation is exact.
        if (static_cast<int64_t>(i) % launch.out_stride < launch.n) {
          ASSERT_EQ(launch.out[i], expected[i]) << i;
        } else {
          ASSERT_TRUE(std::isnan(launch.out[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
