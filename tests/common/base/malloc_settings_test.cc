#include "common/base/malloc_settings.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <cstdlib>

namespace baton {
namespace {

int64_t OsPageFaults() {
  rusage usage;
  EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  return usage.ru_minflt;
}

// As many as a transfer has on its way. One alone glibc would keep.
void UseBuffers() {
  constexpr size_t kBytes = 4 << 20;
  std::array<void*, 6> buffers;
  for (void*& buffer : buffers) {
    buffer = std::malloc(kBytes);
    for (size_t i = 0; i < kBytes; i += 4096) static_cast<volatile char*>(buffer)[i] = 1;
  }
  for (void* const buffer : buffers) std::free(buffer);
}

TEST(MallocSettingsTest, FreedBuffersAreUsedAgainWithoutOsPageFaults) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
  GTEST_SKIP() << "not glibc's malloc";
#endif
  KeepFreedMemory();
  UseBuffers();
  const int64_t before = OsPageFaults();
  for (int i = 0; i < 10; ++i) UseBuffers();
  EXPECT_LT(OsPageFaults() - before, 512) << "60 buffers have 61,440 of them";
}

}  // namespace
}  // namespace baton
