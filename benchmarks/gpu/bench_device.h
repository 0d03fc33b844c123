// A device with memory filled with numbers, and a clock for its launches.
#ifndef BATON_BENCHMARKS_GPU_BENCH_DEVICE_H_
#define BATON_BENCHMARKS_GPU_BENCH_DEVICE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/gpu/open_device.h"
#include "benchmarks/gpu/shapes.h"
#include "common/backend/tensor.h"

namespace baton::gpu_bench {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

enum class Mode {
  kMeasure,
  kOnce,  // launches once and measures nothing: for profilers
  kDry,   // no memory, no launches: whether the operands would fit, with a large GPU's cache
};

// Thread: one.
class BenchDevice {
 public:
  static absl::StatusOr<std::unique_ptr<BenchDevice>> Open(const Grid& grid, Mode mode);

  const backend::cuda::DeviceProperties& properties() const { return runtime_->properties(); }
  backend::cuda::Runtime& runtime() { return *runtime_; }
  backend::cuda::Products* products() { return products_.get(); }  // null: Baton's kernels alone
  backend::cuda::Stream stream() const { return stream_; }
  bool launches() const { return mode_ != Mode::kDry; }  // false: there is no memory either
  // The type that an engine on this device computes in.
  backend::DType dtype() const;

  // Device memory for the operands of one case: finite numbers of magnitude 2^-6 to 2^-5 as
  // 16-bit values of dtype(). Null if there is not so much left since the last Reset.
  std::byte* Take(size_t size_bytes);
  template <class T>
  T* Take(int64_t count) {
    return reinterpret_cast<T*>(Take(static_cast<size_t>(count) * sizeof(T)));
  }
  // The same with these values.
  template <class T>
  T* Send(const std::vector<T>& values) {
    T* const memory = Take<T>(static_cast<int64_t>(values.size()));
    if (memory != nullptr) Copy(memory, values.data(), values.size() * sizeof(T));
    return memory;
  }
  void Reset() { taken_ = 0; }
  // Pinned memory of the host with any numbers, the same each time. Null if there is not so much.
  std::byte* Pinned(size_t size_bytes);
  void Copy(void* device, const void* host, size_t size_bytes);  // waits
  void Zero(void* device, size_t size_bytes);
  size_t slab_bytes() const { return slab_bytes_; }
  size_t l2_bytes() const { return l2_bytes_; }

  // The number of copies of operands, used in turns, that keeps each out of the cache; at most as
  // many as fit the memory.
  int Turns(double operand_bytes) const;

  // Seconds of one launch, back to back with others: the median of rounds. turn: the launches
  // before, by which `launch` chooses its operands.
  double Seconds(const std::function<void(int turn)>& launch);

 private:
  BenchDevice(OpenedDevice opened, const Grid& grid, Mode mode);
  absl::Status Initialize(const Grid& grid);
  void HoldBack(double seconds);

  const std::unique_ptr<backend::cuda::Runtime> runtime_;
  const std::unique_ptr<backend::cuda::Products> products_;
  const backend::cuda::Stream stream_;
  const double round_seconds_;
  const int rounds_;
  const Mode mode_;
  const size_t l2_bytes_;
  std::byte* slab_ = nullptr;
  size_t slab_bytes_ = 0;
  size_t taken_ = 0;
  std::byte* plug_ = nullptr;
  size_t plug_bytes_ = 0;
  double plug_seconds_ = 0;
  std::byte* pinned_ = nullptr;
  std::byte* pinned_operands_ = nullptr;
  size_t pinned_operand_bytes_ = 0;
};

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_BENCH_DEVICE_H_
