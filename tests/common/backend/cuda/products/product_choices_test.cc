#include "common/backend/cuda/products/product_choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/seed.h"
#include "xxhash.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kHeaderBytes = 24, kPayloadAt = 24;

TEST(RowsBucketTest, HasTheBatchesThatDecodeStepsArePaddedTo) {
  for (const int batch : {1, 2, 4, 8, 16, 24, 32, 48, 64}) EXPECT_EQ(RowsBucket(batch), batch);
  EXPECT_EQ(RowsBucket(3), 4);
  EXPECT_EQ(RowsBucket(9), 16);
  EXPECT_EQ(RowsBucket(17), 24);
  EXPECT_EQ(RowsBucket(25), 32);
  EXPECT_EQ(RowsBucket(33), 48);
  EXPECT_EQ(RowsBucket(49), 64);
  EXPECT_EQ(RowsBucket(65), 96);
  EXPECT_EQ(RowsBucket(769), 1024);
  EXPECT_EQ(RowsBucket(1025), 2048);
  EXPECT_EQ(RowsBucket(kMaxBucketRows), kMaxBucketRows);
  for (int rows = 1; rows < 5000; ++rows) {
    const int bucket = RowsBucket(rows);
    ASSERT_GE(bucket, rows);
    ASSERT_EQ(RowsBucket(bucket), bucket);
    ASSERT_LE(RowsBucket(rows), RowsBucket(rows + 1));
  }
}

class ProductChoicesTest : public ::testing::Test {
 protected:
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  DeviceChoices Device(const std::string& name, int count) {
    DeviceChoices device;
    device.device = name;
    for (int i = 0; i < count; ++i) {
      const ProductKey key = {.dtype = Int(0, 1) ? DType::kF16 : DType::kBF16,
                              .rows = RowsBucket(1 << Int(0, 30)),
                              .n = Int(1, 1 << 20),
                              .k = Int(1, 1 << 20),
                              .bias = Int(0, 1) == 1};
      ProductChoice choice = {.own = Int(0, 3) == 0, .nanoseconds = random_()};
      if (!choice.own) {
        for (uint64_t& word : choice.words) word = random_();
      }
      device.choices[key] = choice;
    }
    return device;
  }
  std::vector<DeviceChoices> Devices() {
    std::vector<DeviceChoices> devices;
    for (int i = Int(0, 4); i > 0; --i) {
      devices.push_back(Device("device " + std::to_string(i), Int(0, 30)));
    }
    return devices;
  }
  // Recomputes the checksum of changed bytes.
  static std::string Signed(std::string bytes) {
    if (bytes.size() < kHeaderBytes) return bytes;
    const uint64_t sum = XXH3_64bits(bytes.data() + kPayloadAt, bytes.size() - kPayloadAt);
    const size_t length = bytes.size() - kPayloadAt;
    for (size_t i = 0; i < 4; ++i) bytes[12 + i] = static_cast<char>(length >> (8 * i));
    for (size_t i = 0; i < 8; ++i) bytes[16 + i] = static_cast<char>(sum >> (8 * i));
    return bytes;
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

TEST_F(ProductChoicesTest, ReadAsWritten) {
  SCOPED_TRACE(seed_);
  EXPECT_EQ(DecodeChoices(EncodeChoices({})).value(), std::vector<DeviceChoices>());
  for (int round = 0; round < 200; ++round) {
    const std::vector<DeviceChoices> devices = Devices();
    const auto read = DecodeChoices(EncodeChoices(devices));
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(*read, devices);
  }
}

TEST_F(ProductChoicesTest, TheFormatOfVersion1) {
  DeviceChoices device = {.device = "T4", .choices = {}};
  device.choices[{.dtype = DType::kBF16, .rows = 24, .n = 0x102, .k = 8, .bias = true}] = {
      .own = false, .words = {1, 2, 3, 4, 5, 6, 7, 0x8000000000000009}, .nanoseconds = 5};
  const std::string bytes = EncodeChoices({device});
  ASSERT_EQ(bytes.size(), 24u + 4 + 4 + 2 + 4 + 88);
  EXPECT_EQ(bytes.substr(0, 16), std::string("BATONALG\1\0\0\0\x66\0\0\0", 16));
  EXPECT_EQ(bytes.substr(24, 14), std::string("\1\0\0\0\2\0\0\0T4\1\0\0\0", 14));
  EXPECT_EQ(bytes.substr(38, 24),
            std::string("\2\1\0\0\x18\0\0\0\2\1\0\0\x8\0\0\0\5\0\0\0\0\0\0\0", 24));
  EXPECT_EQ(bytes.substr(118), std::string("\x9\0\0\0\0\0\0\x80", 8));
}

TEST_F(ProductChoicesTest, EveryTruncationAndBitIsNoticed) {
  SCOPED_TRACE(seed_);
  const std::string bytes = EncodeChoices({Device("some device", 3), Device("another", 2)});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeChoices(bytes.substr(0, size)).status().code(), absl::StatusCode::kDataLoss)
        << size;
  }
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string other = bytes;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(DecodeChoices(other).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
  EXPECT_FALSE(DecodeChoices(bytes + '\0').ok());
  EXPECT_FALSE(DecodeChoices(Signed(bytes + '\0')).ok()) << "something behind the last device";
}

TEST_F(ProductChoicesTest, SizesFromOutsideAreNotBelieved) {
  const std::string bytes = EncodeChoices({Device("some device", 3)});
  const auto with = [&](size_t at, uint32_t value) {
    std::string other = bytes;
    for (size_t i = 0; i < 4; ++i) other[at + i] = static_cast<char>(value >> (8 * i));
    return other;
  };
  for (const uint32_t size : {uint32_t{0}, uint32_t{1} << 31, ~uint32_t{0}}) {
    // Of the payload, the devices, the name, and the choices.
    EXPECT_FALSE(DecodeChoices(with(12, size)).ok()) << size;
    EXPECT_FALSE(DecodeChoices(Signed(with(24, size))).ok()) << size;
    EXPECT_FALSE(DecodeChoices(Signed(with(28, size))).ok()) << size;
    EXPECT_FALSE(DecodeChoices(Signed(with(32 + 11, size))).ok()) << size;
  }
  EXPECT_TRUE(DecodeChoices(Signed(bytes)).ok());
  const absl::Status version = DecodeChoices(with(8, 2)).status();
  EXPECT_NE(version.message().find("found version 2, expected 1"), std::string::npos) << version;
}

// Whatever is read could have been written; nothing else is.
TEST_F(ProductChoicesTest, ForgedBytesAreRefusedOrAreChoices) {
  SCOPED_TRACE(seed_);
  int taken = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = EncodeChoices(Devices());
    for (int change = Int(1, 4); change > 0; --change) {
      const auto at = static_cast<size_t>(Int(0, static_cast<int>(bytes.size()) - 1));
      switch (Int(0, 2)) {
        case 0:
          bytes[at] = static_cast<char>(Int(0, 3));
          break;
        case 1:
          bytes.erase(at, static_cast<size_t>(Int(1, 100)));
          break;
        case 2:
          bytes.insert(at, bytes.substr(static_cast<size_t>(Int(0, static_cast<int>(at))), 88));
          break;
      }
      if (bytes.empty()) bytes.push_back('x');
    }
    bytes = Signed(bytes);
    const auto read = DecodeChoices(bytes);
    if (!read.ok()) {
      ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << read.status();
      continue;
    }
    ++taken;
    ASSERT_EQ(EncodeChoices(*read), bytes);
  }
  EXPECT_GT(taken, 0) << "nor is all refused";
}

TEST_F(ProductChoicesTest, OneDeviceTwiceAndProductsOutOfOrderAreRefused) {
  const std::string one = EncodeChoices({Device("a", 1)}), two = EncodeChoices({Device("a", 2)});
  std::string twice = EncodeChoices({Device("a", 1), Device("b", 1)});
  twice[twice.rfind('b', twice.size() - 88)] = 'a';
  EXPECT_FALSE(DecodeChoices(Signed(twice)).ok());
  std::string swapped = two;
  const size_t first = two.size() - 2 * 88;
  swapped = two.substr(0, first) + two.substr(first + 88) + two.substr(first, 88);
  EXPECT_FALSE(DecodeChoices(Signed(swapped)).ok());
  EXPECT_TRUE(DecodeChoices(one).ok() && DecodeChoices(two).ok());
}

TEST_F(ProductChoicesTest, MergingKeepsWhatOthersFound) {
  SCOPED_TRACE(seed_);
  DeviceChoices ours = Device("ours", 5), before = Device("ours", 5);
  const auto [key, choice] = *ours.choices.begin();
  before.choices[key] = {.own = !choice.own};
  const DeviceChoices other = Device("other", 4);
  const std::vector<DeviceChoices> merged = MergeChoices(ours, {other, before});
  ASSERT_EQ(merged.size(), 2u);
  EXPECT_EQ(merged[0].device, "ours");
  EXPECT_EQ(merged[0].choices.size(), 10u);
  EXPECT_EQ(merged[0].choices.at(key), choice) << "what is new counts";
  EXPECT_EQ(merged[1], other);
}

TEST_F(ProductChoicesTest, MergingStaysWithinTheBounds) {
  std::vector<DeviceChoices> before;
  for (size_t i = 0; i < kMaxDevices; ++i) before.push_back(Device(std::to_string(i), 1));
  DeviceChoices full = {.device = "0", .choices = {}};
  for (size_t i = 0; i < kMaxChoices; ++i) {
    full.choices[{.rows = 1, .n = 1, .k = static_cast<int>(i) + 1}] = {.own = true};
  }
  before[0] = full;
  const std::vector<DeviceChoices> merged = MergeChoices(
      {.device = "0", .choices = {{{.rows = 2, .n = 1, .k = 1}, {.own = true}}}}, before);
  EXPECT_EQ(merged.size(), kMaxDevices);
  EXPECT_EQ(merged[0].choices.size(), kMaxChoices);
  EXPECT_TRUE(DecodeChoices(EncodeChoices(merged)).ok());
  const std::vector<DeviceChoices> another = MergeChoices({.device = "new", .choices = {}}, before);
  EXPECT_EQ(another.size(), kMaxDevices);
  EXPECT_EQ(another[0].device, "new");
  EXPECT_EQ(another.back().device, std::to_string(kMaxDevices - 2)) << "the last one fell out";
  // All that there may be fits the file.
  std::vector<DeviceChoices> most(kMaxDevices, full);
  for (size_t i = 0; i < most.size(); ++i) {
    most[i].device = std::string(kMaxDeviceName, static_cast<char>('a' + i));
  }
  EXPECT_LE(EncodeChoices(most).size(), kMaxChoicesBytes);
}

}  // namespace
}  // namespace baton::backend::cuda
