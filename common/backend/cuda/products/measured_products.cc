#include "common/backend/cuda/products/measured_products.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/products/choices_file.h"
#include "common/base/check.h"
#include "common/base/log.h"

namespace baton::backend::cuda {
namespace {

// Weights that are multiplied one after the other in a measurement, where products are short.
constexpr int kInARow = 4;
constexpr int kShortRows = 64;
// Seconds for a product and bucket: after them the rounds end, if each candidate had kLeastRounds.
constexpr double kMostSeconds = 0.5;
constexpr size_t kLeastRounds = 3;
// A candidate that is so many times slower than the best after two rounds is dropped.
constexpr double kOut = 1.5;
constexpr double kNoFaster = 1.02;
// Rows that a bucket's algorithm did not serve; beyond it, they are found anew.
constexpr size_t kMaxExactRows = 4096;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

size_t WeightBytes(const MatMulLaunch& launch) {
  return static_cast<size_t>(launch.n) * static_cast<size_t>(launch.k) * sizeof(uint16_t);
}

}  // namespace

std::string TimedDevice(const DeviceProperties& device) {
  return absl::StrCat(device.name, "; compute capability ", device.compute_capability, ", kernels ",
                      device.kernel_capability, "; ", device.multiprocessors,
                      " multiprocessors; driver ", device.driver, "; products ", kMatMulVersion);
}

struct MeasuredProducts::Candidate {
  std::optional<AlgorithmWords> words;  // none: ours
  bool refused = false;
  bool out = false;
  std::vector<double> seconds;

  double least() const { return *std::min_element(seconds.begin(), seconds.end()); }
};

MeasuredProducts::MeasuredProducts(std::unique_ptr<ProductLibrary> library,
                                   std::unique_ptr<Stopwatch> stopwatch,
                                   MeasuredProductsOptions options)
    : library_(std::move(library)),
      stopwatch_(std::move(stopwatch)),
      options_(std::move(options)),
      device_(absl::StrCat(options_.device, "; ", library_->Version()).substr(0, kMaxDeviceName)) {}

ProductKey MeasuredProducts::KeyOf(const MatMulLaunch& launch, DType dtype, int rows) {
  return {
      .dtype = dtype, .rows = rows, .n = launch.n, .k = launch.k, .bias = launch.bias != nullptr};
}

void MeasuredProducts::Tune(absl::Span<const ProductUse> uses, DType dtype, Stream stream) {
  std::map<std::tuple<int, int, bool>, Group> groups;
  for (const ProductUse& use : uses) {
    const MatMulLaunch& launch = use.launch;
    if (launch.rows < use.least_rows || launch.n == 0) continue;
    Group& group = groups[{launch.n, launch.k, launch.bias != nullptr}];
    group.least_rows =
        group.launches.empty() ? use.least_rows : std::min(group.least_rows, use.least_rows);
    // What all of them have room for.
    group.most_rows = group.launches.empty() ? launch.rows : std::min(group.most_rows, launch.rows);
    group.launches.push_back(launch);
    weights_.push_back(launch);
  }
  // Few long launches keep the device busier than many short ones.
  std::stable_sort(
      weights_.begin(), weights_.end(),
      [](const MatMulLaunch& a, const MatMulLaunch& b) { return WeightBytes(a) > WeightBytes(b); });
  const ProductChoices kept = Kept();
  ProductChoices tuned;
  int measured = 0;
  measured_seconds_ = 0;
  for (const auto& [shape, group] : groups) {
    for (int bucket = RowsBucket(group.least_rows);; bucket = RowsBucket(bucket + 1)) {
      MatMulLaunch launch = group.launches[0];
      launch.rows = std::min(bucket, group.most_rows);
      const ProductKey key = KeyOf(launch, dtype, bucket);
      const auto before = kept.find(key);
      if (tuned.size() == kMaxChoices) break;
      if (before != kept.end() && Serves(before->second, launch, dtype, stream)) {
        tuned.insert(*before);
      } else {
        tuned[key] = Measure(group, launch.rows, dtype, stream);
        ++measured;
      }
      if (bucket >= group.most_rows) break;
    }
  }
  weights_.clear();
  for (const auto& [key, choice] : tuned) choices_[key] = choice;
  BATON_LOG(Info) << "matrix products: " << tuned.size() << ", of which " << measured
                  << " had to be measured, in " << measured_seconds_ << " s of the device's time";
  if (measured > 0) Keep(std::move(tuned));
}

bool MeasuredProducts::Serves(const ProductChoice& choice, const MatMulLaunch& launch, DType dtype,
                              Stream stream) {
  if (choice.own) {
    options_.own(launch, dtype, stream);
    return true;
  }
  return library_->Accepts(launch, dtype, choice.words) &&
         library_->Run(launch, dtype, choice.words, stream);
}

ProductChoices MeasuredProducts::Kept() {
  if (options_.file.empty()) return {};
  auto devices = ReadChoices(options_.file);
  if (!devices.ok()) {
    BATON_LOG(Warning) << "matrix products are measured anew, and the file replaced: "
                       << devices.status().message();
    return {};
  }
  for (DeviceChoices& device : *devices) {
    if (device.device == device_) return std::move(device.choices);
  }
  return {};
}

void MeasuredProducts::Keep(ProductChoices tuned) {
  if (options_.file.empty()) return;
  // What others have written since. Kept() has spoken about a file that is none.
  auto before = ReadChoices(options_.file);
  const std::vector<DeviceChoices> merged =
      MergeChoices({.device = device_, .choices = std::move(tuned)},
                   before.ok() ? *std::move(before) : std::vector<DeviceChoices>());
  if (const absl::Status status = WriteChoices(options_.file, merged); !status.ok()) {
    BATON_LOG(Warning) << "measurements of matrix products are not kept: " << status.message();
  }
}

ProductChoice MeasuredProducts::Measure(const Group& group, int rows, DType dtype, Stream stream) {
  MatMulLaunch launch = group.launches[0];
  launch.rows = rows;
  std::vector<Candidate> candidates;
  for (const AlgorithmWords& words : library_->Suggest(launch, dtype, kSuggestions)) {
    candidates.push_back({.words = words, .seconds = {}});
  }
  if (rows <= kOwnRows) candidates.push_back({.words = std::nullopt, .seconds = {}});
  double spent = 0;
  for (int round = 0; round <= kRounds; ++round) {
    double best = -1;
    for (Candidate& candidate : candidates) {
      if (candidate.out) continue;
      const double seconds = TimeOnce(candidate, group, rows, round, dtype, stream);
      candidate.refused = candidate.out = seconds < 0;
      if (candidate.refused) continue;
      // Kernels are loaded when they are first launched, which the device waits for.
      if (round == 0) continue;
      spent += seconds;
      candidate.seconds.push_back(seconds);
      best = best < 0 ? candidate.least() : std::min(best, candidate.least());
    }
    if (round < 2) continue;
    for (Candidate& candidate : candidates) {
      candidate.out = candidate.out || candidate.least() > kOut * best;
    }
    if (round >= static_cast<int>(kLeastRounds) && spent > kMostSeconds) break;
  }
  const Candidate* chosen = nullptr;
  double least = 0;
  for (const Candidate& candidate : candidates) {
    if (candidate.refused) continue;
    const double median = Median(candidate.seconds);
    // The first, which the library would have chosen, stays unless another is better for sure.
    const double margin = chosen == &candidates[0] ? kNoFaster : 1;
    if (chosen != nullptr && median * margin >= least) continue;
    chosen = &candidate;
    least = median;
  }
  if (chosen == nullptr) return {.own = true};
  ProductChoice choice = {.own = !chosen->words.has_value(),
                          .nanoseconds = static_cast<uint64_t>(least * 1e9)};
  if (!choice.own) choice.words = *chosen->words;
  return choice;
}

double MeasuredProducts::TimeOnce(const Candidate& candidate, const Group& group, int rows,
                                  int round, DType dtype, Stream stream) {
  const size_t size = group.launches.size();
  const size_t count = rows <= kShortRows ? std::min<size_t>(size, kInARow) : 1;
  bool served = true;
  const double seconds = stopwatch_->Time(
      stream, [&] { Evict(group.launches[0], dtype, stream); },
      [&] {
        for (size_t i = 0; i < count && served; ++i) {
          MatMulLaunch launch = group.launches[(static_cast<size_t>(round) * count + i) % size];
          launch.rows = rows;
          if (candidate.words) {
            served = library_->Run(launch, dtype, *candidate.words, stream);
          } else {
            options_.own(launch, dtype, stream);
          }
        }
      });
  measured_seconds_ += seconds;
  return served ? seconds / static_cast<double>(count) : -1;
}

void MeasuredProducts::Evict(const MatMulLaunch& spared, DType dtype, Stream stream) {
  size_t bytes = 0;
  for (MatMulLaunch launch : weights_) {
    if (bytes >= options_.evict_bytes) return;
    if (launch.n == spared.n && launch.k == spared.k) continue;
    launch.rows = 1;
    options_.own(launch, dtype, stream);
    bytes += WeightBytes(launch);
  }
}

bool MeasuredProducts::Run(const ProductChoice& choice, const MatMulLaunch& launch, DType dtype,
                           Stream stream) {
  return !choice.own && library_->Run(launch, dtype, choice.words, stream);
}

ProductChoice MeasuredProducts::FirstOf(const MatMulLaunch& launch, DType dtype) {
  const std::vector<AlgorithmWords> found = library_->Suggest(launch, dtype, 1);
  if (!found.empty()) return {.words = found[0]};
  if (reported_.emplace(launch.n, launch.k).second) {
    BATON_LOG(Warning) << "the library has no algorithm for " << launch.rows << " x " << launch.k
                       << " times " << launch.k << " x " << launch.n << " in " << Name(dtype)
                       << ": such products take the deterministic kernels, which are slower";
  }
  return {.own = true};
}

bool MeasuredProducts::MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) {
  const ProductKey exact = KeyOf(launch, dtype, launch.rows);
  auto of_rows = of_rows_.find(exact);
  if (of_rows == of_rows_.end()) {
    const ProductKey key = KeyOf(launch, dtype, RowsBucket(launch.rows));
    auto choice = choices_.find(key);
    if (choice == choices_.end()) {
      MatMulLaunch largest = launch;
      largest.rows = key.rows;
      choice = choices_.emplace(key, FirstOf(largest, dtype)).first;
    }
    if (choice->second.own && launch.rows <= kOwnRows) return false;
    if (Run(choice->second, launch, dtype, stream)) return true;
    // What serves the bucket's largest need not serve this one.
    if (of_rows_.size() == kMaxExactRows) of_rows_.clear();
    of_rows = of_rows_.emplace(exact, FirstOf(launch, dtype)).first;
  }
  if (Run(of_rows->second, launch, dtype, stream)) return true;
  of_rows->second = {.own = true};
  return false;
}

}  // namespace baton::backend::cuda
