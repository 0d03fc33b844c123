// main() that runs the kernels' tests on a GPU, unchanged: from here on, what the tests allocate is
// pinned host memory, which a GPU reads and writes at the same address, and a launch returns when
// it is done. Slow and simple; meant for what the tests say, not for time.
//
// With BATON_TEST_SEPARATE_MEMORY=1 each object of some size is an allocation of the driver's own,
// so that compute-sanitizer knows where it ends.
//
// Without a GPU it says so and exits with 77. A GPU below sm_80, or the PTX of one, multiplies no
// bfloat16: BATON_T4_MODE tells the tests (kernel_test.h), and BATON_TEST_ON_GPU that they are
// here.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

enum class Source : size_t { kMalloc, kPool, kSeparate };

// Before each object. Its size keeps what follows aligned.
struct alignas(64) Header {
  Source source;
  size_t size_class;
};

constexpr size_t kPoolBytes = size_t{512} << 20;
constexpr size_t kSmallestBytes = 128;  // header included

// Objects of a pool by powers of two; those freed are kept for the next.
class PinnedPool {
 public:
  bool Open() {
    if (const char* bytes = std::getenv("BATON_TEST_SEPARATE_MEMORY"); bytes != nullptr) {
      separate_from_bytes_ = std::strtoull(bytes, nullptr, 10);
    }
    void* memory = nullptr;
    if (cudaMallocHost(&memory, kPoolBytes) != cudaSuccess) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    next_ = static_cast<std::byte*>(memory);
    end_ = next_ + kPoolBytes;
    return true;
  }

  void* Allocate(size_t bytes) {
    const size_t whole = bytes + sizeof(Header);
    if (bytes >= separate_from_bytes_ && !inside_driver_) {
      inside_driver_ = true;
      void* memory = nullptr;
      const cudaError_t error = cudaMallocHost(&memory, whole);
      inside_driver_ = false;
      if (error != cudaSuccess) return nullptr;
      return Mark(memory, {Source::kSeparate, 0});
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (next_ == nullptr) return Mark(std::aligned_alloc(64, (whole + 63) / 64 * 64), {});
    size_t size_class = 0;
    while ((kSmallestBytes << size_class) < whole) ++size_class;
    if (void*& free = free_[size_class]; free != nullptr) {
      void* object = free;
      free = *static_cast<void**>(object);
      return object;
    }
    const size_t size = kSmallestBytes << size_class;
    if (static_cast<size_t>(end_ - next_) < size) return nullptr;
    std::byte* memory = next_;
    next_ += size;
    return Mark(memory, {Source::kPool, size_class});
  }

  void Free(void* object) {
    if (object == nullptr) return;
    Header* header = static_cast<Header*>(object) - 1;
    switch (header->source) {
      case Source::kMalloc:
        std::free(header);
        return;
      case Source::kSeparate:
        inside_driver_ = true;
        cudaFreeHost(header);
        inside_driver_ = false;
        return;
      case Source::kPool: {
        std::lock_guard<std::mutex> lock(mutex_);
        *static_cast<void**>(object) = free_[header->size_class];
        free_[header->size_class] = object;
      }
    }
  }

 private:
  static void* Mark(void* memory, const Header& header) {
    if (memory == nullptr) return nullptr;
    return new (memory) Header(header) + 1;
  }

  std::mutex mutex_;
  std::byte* next_ =
      nullptr;  // null until there is a pool: what is allocated before is the system's
  std::byte* end_ = nullptr;
  std::array<void*, 64> free_ = {};
  size_t separate_from_bytes_ = SIZE_MAX;
  // The driver allocates, too, and may hold its locks.
  static thread_local bool inside_driver_;
};

thread_local bool PinnedPool::inside_driver_ = false;
constinit PinnedPool pool;

}  // namespace

void* operator new(size_t bytes) {
  void* object = pool.Allocate(bytes);
  if (object == nullptr) {
    std::fprintf(stderr, "no pinned memory for %zu bytes: the pool has %zu\n", bytes, kPoolBytes);
    std::abort();
  }
  return object;
}
void operator delete(void* object) noexcept { pool.Free(object); }
void operator delete(void* object, size_t) noexcept { pool.Free(object); }

int main(int argc, char** argv) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  setenv("BATON_TEST_ON_GPU", "1", 1);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    std::printf("skipped: no GPU here (%s)\n", cudaGetErrorString(error));
    return 77;
  }
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || !pool.Open()) {
    std::printf("GPU 0: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 1;
  }
  if (properties.major < 8) setenv("BATON_T4_MODE", "1", 1);
  std::printf("on %s, compute capability %d.%d\n", properties.name, properties.major,
              properties.minor);
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    std::printf("the GPU ended with an error: %s\n", cudaGetErrorString(error));
    return 1;
  }
  return result;
}
