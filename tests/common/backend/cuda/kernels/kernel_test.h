// What tests of kernels on the emulated device share: memory that shows what strays, and a random
// machine.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_KERNEL_TEST_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_KERNEL_TEST_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {

// Memory as cudaMalloc gives it, for trivially copyable T: all bits set (NaNs) until it is written,
// with a margin on both sides that must stay so.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size)
      : size_(size), memory_(2 * kMargin + (size * sizeof(T) + 15) / 16) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 16);
    std::memset(memory_.data(), 0xff, memory_.size() * 16);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(memory_.data() + kMargin); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data() + kMargin); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  std::vector<T> values() const { return std::vector<T>(data(), data() + size_); }
  bool MarginsIntact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data());
    const size_t end = kMargin * 16 + size_ * sizeof(T);
    for (size_t i = 0; i < memory_.size() * 16; ++i) {
      if ((i < kMargin * 16 || i >= end) && bytes[i] != 0xff) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kMargin = 8;  // times 16 bytes
  size_t size_;
  std::vector<Vec16> memory_;
};

// Whether a GPU runs the tests' kernels; see gpu_main.cc.
inline bool OnGpu() { return std::getenv("BATON_TEST_ON_GPU") != nullptr; }

// Of a test that draws its cases: fewer where PTX is interpreted, which is slow.
inline int Rounds(int many, int few) { return std::getenv("BATON_PTX") != nullptr ? few : many; }

// A pool's blocks, where they are or at the places that they have in a pool of 200 GB: numbers and
// offsets beyond 32 bits. Pages of address space that no block is in take no memory.
class BlockMemory {
 public:
  BlockMemory(std::byte* near, int64_t blocks, int64_t stride, bool far)
      : near_(near), blocks_(blocks), stride_(stride) {
    if (!far || OnGpu()) return;
    void* memory = mmap(nullptr, kFarBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;  // a system that reserves what is asked for
    far_ = static_cast<std::byte*>(memory);
    spread_ = std::min<int64_t>(kFarBytes / stride, INT32_MAX) / blocks;
    for (int64_t block = 0; block < blocks; ++block) {
      std::memcpy(base() + Number(block) * stride, near + block * stride,
                  static_cast<size_t>(stride));
    }
  }
  ~BlockMemory() {
    if (far_ != nullptr) munmap(far_, kFarBytes);
  }
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  std::byte* base() { return far_ != nullptr ? far_ : near_; }
  int32_t Number(int64_t block) const { return static_cast<int32_t>(block * spread_); }
  std::vector<int32_t> Numbers(const std::vector<int32_t>& blocks) const {
    std::vector<int32_t> numbers;
    for (const int32_t block : blocks) numbers.push_back(Number(block));
    return numbers;
  }
  // What kernels wrote, to the near blocks.
  void CopyBack() {
    if (far_ == nullptr) return;
    for (int64_t block = 0; block < blocks_; ++block) {
      std::memcpy(near_ + block * stride_, far_ + Number(block) * stride_,
                  static_cast<size_t>(stride_));
    }
  }

 private:
  static constexpr int64_t kFarBytes = int64_t{200} << 30;
  std::byte* const near_;
  const int64_t blocks_, stride_;
  std::byte* far_ = nullptr;
  int64_t spread_ = 1;
};

inline float ToF32(const void* bits, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bits, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, bits, sizeof(half));
  return dtype == DType::kF16 ? Half::ToF32(half) : BFloat16::ToF32(half);
}

// dtype: kF16 or kBF16.
inline uint16_t Round16(float value, DType dtype) {
  return dtype == DType::kF16 ? Half::FromF32(value) : BFloat16::FromF32(value);
}
inline float Rounded16(float value, DType dtype) {
  const uint16_t bits = Round16(value, dtype);
  return dtype == DType::kF16 ? Half::ToF32(bits) : BFloat16::ToF32(bits);
}
inline void FromF32(float value, DType dtype, void* bits) {
  if (dtype == DType::kF32) {
    std::memcpy(bits, &value, sizeof(value));
  } else {
    const uint16_t half = Round16(value, dtype);
    std::memcpy(bits, &half, sizeof(half));
  }
}

// Whether the machine has products of bfloat16; see gpu_main.cc.
inline bool MultipliesBFloat16() { return std::getenv("BATON_T4_MODE") == nullptr; }

// What rounding to the dtype may cost, relative; of normal numbers.
inline double Precision(DType dtype) {
  return dtype == DType::kF32 ? 1e-6 : dtype == DType::kF16 ? 4.9e-4 : 3.95e-3;
}

class KernelTest : public ::testing::Test {
 protected:
  void TearDown() override { emulated::SetOptions({}); }

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Coin() { return Int(0, 1) == 1; }
  float Normal(float deviation = 1) {
    return std::normal_distribution<float>(0, deviation)(random_);
  }
  DType AnyDType() { return static_cast<DType>(Int(0, 2)); }
  DType Any16() { return Coin() ? DType::kF16 : DType::kBF16; }
  // Another capability and another order of blocks and warps.
  void ChangeMachine() {
    emulated::SetOptions({.compute_capability = Coin() ? 75 : 80, .seed = random_()});
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_KERNEL_TEST_H_
