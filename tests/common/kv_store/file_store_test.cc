#include "common/kv_store/file_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "common/base/error.h"
#include "tests/common/kv_store/store_cases.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/seed.h"

namespace baton::kv_store {
namespace {

namespace fs = std::filesystem;

class FileStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<FileStore> Open(int64_t max_bytes = 1 << 20) {
    auto store = FileStore::Open(directory_.path(), max_bytes, clock_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path())) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  // Of the only file.
  fs::path File() const {
    const std::vector<fs::path> files = Files();
    EXPECT_EQ(files.size(), 1u);
    return files.at(0);
  }
  int Filler(FileStore& store, uint64_t key, size_t bytes = 1000) {
    const auto value = store.Get(KeyOf(key), bytes, kNoDeadline);
    return value.ok() ? static_cast<int>((*value)->back()) : -1;
  }

  TemporaryDirectory directory_;
  testing::FakeClock clock_;
};

TEST_F(FileStoreTest, SurvivesARestartInTheOrderOfUse) {
  {
    auto store = Open();
    for (uint64_t key : {1, 2, 3}) {
      ASSERT_TRUE(store->Put(KeyOf(key), ValueOf(1000, static_cast<int>(key)), kNoDeadline).ok());
    }
    EXPECT_EQ(Filler(*store, 1), 1);  // now the most recently used
  }
  // Times of files have the system's grain: of 2 and 3 the order may be lost, not that of 1.
  auto store = Open(2000);
  EXPECT_EQ(store->usage().segments, 2);
  EXPECT_EQ(store->usage().bytes, 2000);
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_EQ(Filler(*store, 1), 1);
}

TEST_F(FileStoreTest, IsBoundedAndEvictsAPromptFromItsEnd) {
  auto store = Open(2500);
  const std::vector<SegmentKey> prompt = {KeyOf(1), KeyOf(2)};
  for (const SegmentKey& key : prompt) {
    ASSERT_TRUE(store->Put(key, ValueOf(1000, 1), kNoDeadline).ok());
  }
  EXPECT_EQ(Count(*store, prompt), 2);
  ASSERT_TRUE(store->Put(KeyOf(3), ValueOf(1000, 3), kNoDeadline).ok());
  EXPECT_EQ(Count(*store, prompt), 1);
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_EQ(store->usage().evicted, 1);
  EXPECT_EQ(store->Put(KeyOf(4), ValueOf(2501, 1), kNoDeadline).code(),
            absl::StatusCode::kResourceExhausted);
  store->Remove(KeyOf(1), kNoDeadline);
  EXPECT_EQ(Files().size(), 1u);
  EXPECT_EQ(Filler(*store, 1), -1);
}

TEST_F(FileStoreTest, OddFilesAreMissesOrDamage) {
  auto store = Open();
  ASSERT_TRUE(store->Put(KeyOf(1), ValueOf(1000, 1), kNoDeadline).ok());
  fs::resize_file(File(), 2000);  // longer than may be: not read
  EXPECT_EQ(store->Get(KeyOf(1), 1000, kNoDeadline).status().code(), absl::StatusCode::kDataLoss);
  fs::resize_file(File(), 0);
  EXPECT_EQ(store->Get(KeyOf(1), 1000, kNoDeadline).status().code(), absl::StatusCode::kDataLoss);
  fs::remove(File());  // another process's eviction
  EXPECT_TRUE(absl::IsNotFound(store->Get(KeyOf(1), 1000, kNoDeadline).status()));
  EXPECT_EQ(store->usage().segments, 0);
  ASSERT_TRUE(store->Put(KeyOf(1), ValueOf(1000, 7), kNoDeadline).ok());
  EXPECT_EQ(Filler(*store, 1), 7);
}

TEST_F(FileStoreTest, ForeignFilesStayAndOldUnfinishedOnesGo) {
  const std::string name = KeyOf(5).ToString(), folder = directory_.path() + "/00";
  fs::create_directories(folder);
  const std::string foreign[] = {directory_.path() + "/notes.txt", folder + "/notes.kv",
                                 directory_.path() + "/" + name + ".kv",  // not in its folder
                                 folder + "/" + name + ".KV"};
  for (const std::string& path : foreign) std::ofstream(path) << "x";
  const std::string old = folder + "/" + name + ".1.1.unfinished";
  const std::string young = folder + "/" + name + ".1.2.unfinished";
  for (const std::string& path : {old, young}) std::ofstream(path) << "x";
  struct timespec times[2] = {};
  times[0].tv_sec = times[1].tv_sec = absl::ToUnixSeconds(clock_.Now() - absl::Hours(2));
  ASSERT_EQ(utimensat(AT_FDCWD, old.c_str(), times, 0), 0);
  auto store = Open(1);
  EXPECT_EQ(store->usage().segments, 0);
  for (const std::string& path : foreign) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
}

TEST_F(FileStoreTest, TwoProcessesMayShareADirectory) {
  auto first = Open(20'000), second = Open(20'000);
  std::thread other([&second] {
    for (int i = 0; i < 200; ++i) {
      EXPECT_TRUE(second->Put(KeyOf(i % 30), ValueOf(1000, i % 30), kNoDeadline).ok());
      (void)second->Get(KeyOf(i * 7 % 30), 1000, kNoDeadline);
    }
  });
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(first->Put(KeyOf(i * 11 % 30), ValueOf(1000, i * 11 % 30), kNoDeadline).ok());
    for (uint64_t key = 0; key < 30; key += 3) {
      const int filler = Filler(*first, key);
      ASSERT_TRUE(filler == -1 || filler == static_cast<int>(key)) << key;
    }
  }
  other.join();
  EXPECT_LE(first->usage().bytes, 20'000);
  for (const fs::path& path : Files()) EXPECT_EQ(path.extension(), ".kv");
}

// RLIMIT_FSIZE stands for a full disk: both fail a write in its middle.
TEST_F(FileStoreTest, AFullDiskCostsTheValueAndAPause) {
  auto store = Open();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {500, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status full = store->Put(KeyOf(1), ValueOf(1000, 1), kNoDeadline);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(ErrorReason(full), "KV_STORE_FULL");
  EXPECT_TRUE(Files().empty());
  EXPECT_EQ(ErrorReason(store->Put(KeyOf(1), ValueOf(1000, 1), kNoDeadline)), "KV_STORE_PAUSED");
  EXPECT_EQ(Count(*store, {KeyOf(1)}), 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(store->Put(KeyOf(1), ValueOf(1000, 1), kNoDeadline).ok());
  EXPECT_EQ(Filler(*store, 1), 1);
}

TEST_F(FileStoreTest, ADirectoryThatIsGoneIsAPause) {
  auto store = Open();
  fs::remove_all(directory_.path());
  std::ofstream(directory_.path()) << "a file in its place";
  EXPECT_EQ(store->Put(KeyOf(1), ValueOf(10, 1), kNoDeadline).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(FileStore::Open(directory_.path(), 1, clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(FileStoreTest, NothingBeginsAfterTheDeadline) {
  auto store = Open();
  ASSERT_TRUE(store->Put(KeyOf(1), ValueOf(10, 1), clock_.Now() + absl::Seconds(1)).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(store->Get(KeyOf(1), 10, clock_.Now()).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store->Put(KeyOf(2), ValueOf(10, 1), clock_.Now())));
}

TEST_F(FileStoreTest, CountsToTheLastOneThatIsThere) {
  auto store = Open(2000);
  ExpectCountsToLast(*store);
}

TEST_F(FileStoreTest, ReportsEveryChange) {
  auto store = Open(2000);
  ExpectHeard(*store, testing::TestSeed());
}

// Its reader would wait for a writer.
TEST_F(FileStoreTest, APipeInPlaceOfAFileIsNoValue) {
  auto store = Open();
  ASSERT_TRUE(store->Put(KeyOf(1), ValueOf(1000, 1), kNoDeadline).ok());
  const fs::path file = File();
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(store->Get(KeyOf(1), 1000, kNoDeadline).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace baton::kv_store
