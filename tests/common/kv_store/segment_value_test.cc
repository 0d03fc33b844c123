#include "common/kv_store/segment_value.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/base/error.h"
#include "tests/testing/seed.h"

namespace baton::kv_store {
namespace {

const kv::KvLayout kLayout = {2, 2, 8, 16, kv::KvDtype::kInt8, 1};

class SegmentValueTest : public ::testing::Test {
 protected:
  SegmentValueTest() {
    for (int i = 0; i < 48; ++i) tokens_.push_back(i * 7);
    segment_ = {11, kLayout.Fingerprint(), 33, tokens_, 32};
    value_ = Encode(segment_, kLayout, [](absl::Span<std::byte> kv) {
      for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<std::byte>(i * 31);
    });
  }
  absl::Status Decoded(const std::vector<std::byte>& bytes, const Segment& expected) const {
    return Decode(bytes, expected, kLayout).status();
  }

  const uint32_t seed_ = testing::TestSeed();
  std::mt19937 random_{seed_};
  std::vector<int32_t> tokens_;
  Segment segment_;
  SegmentBytes value_;
};

TEST_F(SegmentValueTest, ComesBack) {
  EXPECT_EQ(value_->size(), EncodedBytes(segment_, kLayout));
  const auto kv = Decode(*value_, segment_, kLayout);
  ASSERT_TRUE(kv.ok()) << kv.status();
  ASSERT_EQ(kv->size(), static_cast<size_t>(2 * kLayout.BlockBytes()));
  for (size_t i = 0; i < kv->size(); ++i) ASSERT_EQ((*kv)[i], static_cast<std::byte>(i * 31));
}

TEST_F(SegmentValueTest, IsNotAnotherSegments) {
  const auto refused = [this](const Segment& expected) {
    EXPECT_EQ(Decoded(*value_, expected).code(), absl::StatusCode::kDataLoss);
  };
  Segment other = segment_;
  other.model_fingerprint = 12;
  refused(other);
  other = segment_;
  other.layout_fingerprint ^= 1;
  refused(other);
  other = segment_;
  other.root = 34;  // another namespace
  refused(other);
  other = segment_;
  other.segment_tokens = 16;
  refused(other);
  std::vector<int32_t> tokens = tokens_;
  tokens[0] = 1;  // equal in the segment, not before it
  other = segment_;
  other.tokens = tokens;
  refused(other);
  tokens = tokens_;
  tokens.resize(32);
  other.tokens = tokens;
  refused(other);
}

TEST_F(SegmentValueTest, TenThousandFlipsAndCutsAreFound) {
  SCOPED_TRACE(seed_);
  for (int i = 0; i < 10'000; ++i) {
    std::vector<std::byte> bytes = *value_;
    if (i % 10 == 0) {
      bytes.resize(random_() % bytes.size());
    } else {
      bytes[random_() % bytes.size()] ^= static_cast<std::byte>(1 << random_() % 8);
    }
    ASSERT_EQ(Decoded(bytes, segment_).code(), absl::StatusCode::kDataLoss) << i;
  }
  std::vector<std::byte> longer = *value_;
  longer.push_back(std::byte{0});
  EXPECT_EQ(Decoded(longer, segment_).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Decoded({}, segment_).code(), absl::StatusCode::kDataLoss);
}

// Workers of different builds share stores: do not adapt it.
TEST_F(SegmentValueTest, GoldenChecksum) {
  uint64_t checksum;
  std::memcpy(&checksum, value_->data() + 48, sizeof(checksum));
  EXPECT_EQ(checksum, 0x8e2470668152f368u);
}

// A state is stored apart, and a segment's KV cannot be taken for one.
TEST_F(SegmentValueTest, OfARecurrentModel) {
  kv::KvLayout layout = kLayout;
  layout.AddStates({{{.lanes = 32, .depth = 4}, {.lanes = 16, .depth = 3}}});
  ASSERT_EQ(layout.attention_layers(), 2);
  ASSERT_GE(layout.state_pieces(), 1);
  Segment kv = segment_, state = segment_;
  kv.layout_fingerprint = state.layout_fingerprint = layout.Fingerprint();
  state.state = true;
  const auto fill = [](absl::Span<std::byte> bytes) { std::memset(bytes.data(), 3, bytes.size()); };
  const SegmentBytes of_kv = Encode(kv, layout, fill), of_state = Encode(state, layout, fill);
  EXPECT_EQ(Decode(*of_kv, kv, layout)->size(), static_cast<size_t>(2 * 2 * layout.ChunkBytes()));
  EXPECT_EQ(Decode(*of_state, state, layout)->size(),
            static_cast<size_t>(layout.state_pieces() * layout.ChunkBytes()));
  EXPECT_EQ(of_state->size(), EncodedBytes(state, layout));
  EXPECT_EQ(Decode(*of_kv, state, layout).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Decode(*of_state, kv, layout).status().code(), absl::StatusCode::kDataLoss);
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::byte> bytes = *of_state;
    bytes[random_() % bytes.size()] ^= static_cast<std::byte>(1 << random_() % 8);
    ASSERT_EQ(Decode(bytes, state, layout).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST(SegmentKeyTest, AStateHasAKeyOfItsOwn) {
  const SegmentKey key = {0x1a, 0x2b, 256, 0x3c};
  EXPECT_EQ(key.State(), (SegmentKey{0x1a, 0x2b, 256, kv::SnapshotKey(0x3c)}));
  EXPECT_EQ(ParseSegmentKey(key.State().ToString()), key.State());
}

TEST(SegmentKeyTest, NameHasAllFields) {
  EXPECT_EQ((SegmentKey{0x1a, 0x2b, 256, 0x3c}.ToString()),
            "000000000000001a-000000000000002b-00000100-000000000000003c");
}

}  // namespace
}  // namespace baton::kv_store
