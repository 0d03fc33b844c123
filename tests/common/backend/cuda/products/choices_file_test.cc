#include "common/backend/cuda/products/choices_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace baton::backend::cuda {
namespace {

class ChoicesFileTest : public ::testing::Test {
 protected:
  ChoicesFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "choices_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = (folder_ / "a" / "b" / "algorithms").string();
  }
  ~ChoicesFileTest() override { std::filesystem::remove_all(folder_); }

  static std::vector<DeviceChoices> Choices(int n) {
    DeviceChoices device = {.device = "device", .choices = {}};
    for (int i = 1; i <= 100 * n; ++i) {
      device.choices[{.rows = 1, .n = n, .k = i}] = {.words = {static_cast<uint64_t>(n)}};
    }
    return {device};
  }
  void Put(const std::string& bytes) {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  // Of the folder that the file is in.
  size_t Files() const {
    const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(parent), {}));
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(ChoicesFileTest, NoFileHasNoChoices) { EXPECT_EQ(ReadChoices(path_).value().size(), 0u); }

TEST_F(ChoicesFileTest, FoldersAreMadeAndFilesReplaced) {
  for (const int n : {2, 1, 3}) {
    ASSERT_TRUE(WriteChoices(path_, Choices(n)).ok());
    EXPECT_EQ(ReadChoices(path_).value(), Choices(n));
    EXPECT_EQ(Files(), 1u) << "nothing else is left";
  }
}

TEST_F(ChoicesFileTest, WhatIsNoSuchFileIsRefusedAndCanBeReplaced) {
  const std::string bytes = EncodeChoices(Choices(1));
  for (const std::string& bad : {std::string(), std::string("x"), bytes.substr(0, 100), bytes + "x",
                                 std::string(5000, '\0')}) {
    Put(bad);
    const absl::Status status = ReadChoices(path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_NE(status.message().find(path_), std::string::npos) << status;
    EXPECT_TRUE(WriteChoices(path_, Choices(1)).ok());
    EXPECT_TRUE(ReadChoices(path_).ok());
  }
}

TEST_F(ChoicesFileTest, AHugeFileIsNotRead) {
  Put(EncodeChoices(Choices(1)));
  std::filesystem::resize_file(path_, uintmax_t{1} << 40);  // sparse
  EXPECT_EQ(ReadChoices(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ChoicesFileTest, WhatIsNoFileIsNotWaitedFor) {
  std::filesystem::create_directories(path_);
  EXPECT_EQ(ReadChoices(path_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(WriteChoices(path_, Choices(1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Files(), 1u) << "what could not be renamed is gone";
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ReadChoices(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ChoicesFileTest, WhatCannotBeWrittenIsAnError) {
  const std::string file = (folder_ / "file").string();
  std::ofstream(file) << "x";
  const absl::Status status = WriteChoices(file + "/algorithms", Choices(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(ReadChoices(file + "/algorithms").value().size(), 0u);
}

TEST_F(ChoicesFileTest, WritersAtOnceNeverTearIt) {
  ASSERT_TRUE(WriteChoices(path_, Choices(1)).ok());
  std::atomic<int> writing = 4;
  std::vector<std::thread> writers;
  for (int n = 1; n <= 4; ++n) {
    writers.emplace_back([this, n, &writing] {
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(WriteChoices(path_, Choices(n)).ok());
      --writing;
    });
  }
  while (writing > 0) {
    const auto read = ReadChoices(path_);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) break;
    const int n = read->at(0).choices.begin()->first.n;
    EXPECT_EQ(*read, Choices(n));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(Files(), 1u);
}

}  // namespace
}  // namespace baton::backend::cuda
