#include "common/base/usable_cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

class UsableCoresTest : public ::testing::Test {
 protected:
  UsableCoresTest() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) affinity_ = CPU_COUNT(&set);
  }
  ~UsableCoresTest() override { std::filesystem::remove_all(cgroups_); }

  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = cgroups_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  int Cores() { return UsableCores(cgroups_); }
  int AtMost(int quota) { return std::min(quota, affinity_); }

  const std::string cgroups_ = absl::StrCat(::testing::TempDir(), "/cgroups-", getpid());
  int affinity_ = 1;
};

TEST_F(UsableCoresTest, WithoutAQuotaTheAffinityCounts) {
  EXPECT_EQ(Cores(), affinity_) << "no control groups";
  Write("cpu.max", "max 100000");
  EXPECT_EQ(Cores(), affinity_);
  EXPECT_GE(UsableCores(), 1);
}

TEST_F(UsableCoresTest, Version2) {
  Write("cpu.max", "50000 100000");
  EXPECT_EQ(Cores(), 1);
  Write("cpu.max", "150000 100000");
  EXPECT_EQ(Cores(), AtMost(2)) << "a part of a core is one";
  Write("cpu.max", "200000 100000");
  EXPECT_EQ(Cores(), AtMost(2));
  Write("cpu.max", "1000000000 100000");
  EXPECT_EQ(Cores(), affinity_);
  // Of a machine that has both, version 2 limits the process.
  Write("cpu.max", "100000 100000");
  Write("cpu/cpu.cfs_quota_us", "200000");
  Write("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Cores(), 1);
}

TEST_F(UsableCoresTest, Version1) {
  for (const std::string controller : {"cpu,cpuacct", "cpu"}) {
    Write(controller + "/cpu.cfs_period_us", "100000");
    EXPECT_EQ(Cores(), affinity_) << "no quota";
    Write(controller + "/cpu.cfs_quota_us", "-1");
    EXPECT_EQ(Cores(), affinity_);
    Write(controller + "/cpu.cfs_quota_us", "100000");
    EXPECT_EQ(Cores(), 1);
    Write(controller + "/cpu.cfs_quota_us", "110000");
    EXPECT_EQ(Cores(), AtMost(2));
    std::filesystem::remove_all(cgroups_);
  }
}

TEST_F(UsableCoresTest, WhatIsNoNumberIsNoQuota) {
  for (const char* text : {"", "x", "100000", "100000 0"}) {
    Write("cpu.max", text);
    EXPECT_EQ(Cores(), affinity_) << text;
  }
}

}  // namespace
}  // namespace baton
