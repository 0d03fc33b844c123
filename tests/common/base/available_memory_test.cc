#include "common/base/available_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
constexpr size_t kMib = size_t{1} << 20;

class AvailableMemoryTest : public ::testing::Test {
 protected:
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  size_t Available() { return AvailableMemory(root_, root_ + "/meminfo"); }

  const std::string root_ = absl::StrCat(::testing::TempDir(), "/memory-", getpid());
};

TEST_F(AvailableMemoryTest, TheMachines) {
  EXPECT_EQ(Available(), kUnlimited) << "no files";
  Write("meminfo", "MemTotal:  2048 kB\nMemFree:   10 kB\nMemAvailable:   1024 kB\nBuffers: 1 kB");
  EXPECT_EQ(Available(), kMib);
  Write("memory.max", "max");
  Write("memory.current", "5");
  EXPECT_EQ(Available(), kMib);
  EXPECT_GT(AvailableMemory(), 0u);
}

TEST_F(AvailableMemoryTest, Version2) {
  Write("memory.max", absl::StrCat(10 * kMib));
  EXPECT_EQ(Available(), kUnlimited) << "nothing says what is used";
  Write("memory.current", absl::StrCat(4 * kMib));
  EXPECT_EQ(Available(), 6 * kMib);
  // Cached files can be dropped; shared memory, which counts as a file, cannot.
  Write("memory.stat", absl::StrCat("anon 5\nfile ", 3 * kMib, "\nshmem ", kMib, "\ninactive_file ",
                                    kMib, "\nactive_file ", kMib));
  EXPECT_EQ(Available(), 8 * kMib);
  Write("memory.current", absl::StrCat(kMib));
  EXPECT_EQ(Available(), 10 * kMib) << "read at another moment than memory.stat";
  Write("memory.current", absl::StrCat(20 * kMib));
  EXPECT_EQ(Available(), 0u);
  Write("meminfo", "MemAvailable: 2048 kB");
  Write("memory.current", absl::StrCat(kMib));
  EXPECT_EQ(Available(), 2 * kMib) << "the lesser of both";
  // Of a machine that has both, version 2 limits the process.
  Write("memory/memory.limit_in_bytes", absl::StrCat(kMib));
  Write("memory/memory.usage_in_bytes", "0");
  EXPECT_EQ(Available(), 2 * kMib);
}

TEST_F(AvailableMemoryTest, Version1) {
  Write("memory/memory.limit_in_bytes", absl::StrCat(10 * kMib));
  Write("memory/memory.usage_in_bytes", absl::StrCat(4 * kMib));
  EXPECT_EQ(Available(), 6 * kMib);
  Write("memory/memory.stat", absl::StrCat("inactive_file 9\ntotal_inactive_file ", kMib,
                                           "\ntotal_active_file ", 2 * kMib));
  EXPECT_EQ(Available(), 9 * kMib);
  Write("memory/memory.limit_in_bytes", "9223372036854771712");  // none
  EXPECT_EQ(Available(), 9223372036854771712u - kMib);
}

}  // namespace
}  // namespace baton
