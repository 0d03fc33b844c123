#include "common/transfer/frame_codec.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/testing/seed.h"

namespace baton::transfer {
namespace {

using internal::v1::PrefillFrame;

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The same bytes in slices of random lengths, as the network delivers them.
grpc::ByteBuffer Cut(const std::string& bytes, std::mt19937& random) {
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t count =
        std::min<size_t>(bytes.size() - begin, std::uniform_int_distribution<int>(1, 40)(random));
    slices.emplace_back(bytes.substr(begin, count));
    begin += count;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const Segments& payload) {
  std::string bytes;
  for (absl::Span<const char> segment : payload) bytes.append(segment.data(), segment.size());
  return bytes;
}

PrefillFrame ChunkFrame() {
  PrefillFrame frame;
  frame.set_transfer_id(0x1122334455667788);
  frame.set_epoch(~uint64_t{0});
  frame.set_checksum(42);
  frame.mutable_kv_chunk()->set_layer(3);
  frame.mutable_kv_chunk()->set_first_block(1000);
  frame.mutable_kv_chunk()->set_block_count(2);
  return frame;
}

TEST(FrameCodecTest, WritesAnOrdinaryProtobufMessage) {
  const grpc::ByteBuffer buffer =
      EncodeFrame(ChunkFrame(), {grpc::Slice(std::string("abc")), grpc::Slice(std::string("de"))});
  PrefillFrame parsed;
  ASSERT_TRUE(parsed.ParseFromString(Bytes(buffer)));
  EXPECT_EQ(parsed.payload(), "abcde");
  EXPECT_EQ(parsed.kv_chunk().first_block(), 1000);
  EXPECT_EQ(parsed.epoch(), ~uint64_t{0});
}

TEST(FrameCodecTest, RoundTripHoweverTheBytesAreCut) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    std::string payload(std::uniform_int_distribution<int>(0, 500)(random), '\0');
    for (char& byte : payload) byte = static_cast<char>(random());
    const std::string bytes = Bytes(EncodeFrame(ChunkFrame(), {grpc::Slice(payload)}));
    absl::StatusOr<DecodedFrame> decoded = DecodeFrame(Cut(bytes, random));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->frame.SerializeAsString(), ChunkFrame().SerializeAsString());
    EXPECT_EQ(Joined(decoded->payload), payload);
  }
}

TEST(FrameCodecTest, FramesWithoutPayload) {
  PrefillFrame frame;
  frame.mutable_first_token()->set_token_id(77);
  absl::StatusOr<DecodedFrame> decoded = DecodeFrame(EncodeFrame(frame, {}));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->frame.first_token().token_id(), 77);
  EXPECT_TRUE(decoded->payload.empty());
}

TEST(FrameCodecTest, LargeFramesWithoutPayload) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const int count : {1, 5, 20, 1000, 4000}) {
    PrefillFrame frame;
    frame.set_checksum(1);
    frame.mutable_prompt_logprobs()->set_first_position(1);
    for (int i = 0; i < count; ++i) {
      v1::TokenLogprobs* logprobs = frame.mutable_prompt_logprobs()->add_logprobs();
      for (int k = 0; k < 20; ++k) logprobs->add_top()->set_token_id(i * 20 + k);
    }
    const std::string bytes = Bytes(EncodeFrame(frame, {}));
    const absl::StatusOr<DecodedFrame> decoded = DecodeFrame(Cut(bytes, random));
    if (bytes.size() > (1 << 20) + 256) {
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument) << bytes.size();
      continue;
    }
    ASSERT_TRUE(decoded.ok()) << bytes.size() << ": " << decoded.status();
    EXPECT_EQ(decoded->frame.SerializeAsString(), frame.SerializeAsString());
    EXPECT_TRUE(decoded->payload.empty());
    for (const size_t size : {bytes.size() - 1, bytes.size() / 2}) {
      const absl::StatusOr<DecodedFrame> cut = DecodeFrame(Cut(bytes.substr(0, size), random));
      if (cut.ok()) {
        EXPECT_NE(cut->frame.SerializeAsString(), frame.SerializeAsString());
      }
    }
  }
}

TEST(FrameCodecTest, EveryTruncationIsRefusedOrShort) {
  std::mt19937 random(testing::TestSeed(1));
  const std::string bytes = Bytes(EncodeFrame(ChunkFrame(), {grpc::Slice(std::string(64, 'x'))}));
  for (size_t size = 0; size < bytes.size(); ++size) {
    absl::StatusOr<DecodedFrame> decoded = DecodeFrame(Cut(bytes.substr(0, size), random));
    if (!decoded.ok()) {
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    // Cut between fields: what is left parses, but it is not the frame that was sent.
    EXPECT_TRUE(decoded->payload.empty());
    EXPECT_NE(FrameChecksum(decoded->frame, decoded->payload), decoded->frame.checksum());
  }
}

TEST(FrameCodecTest, GarbageNeverCrashes) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes(std::uniform_int_distribution<int>(0, 300)(random), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (absl::StatusOr<DecodedFrame> decoded = DecodeFrame(Cut(bytes, random)); decoded.ok()) {
      EXPECT_LE(Joined(decoded->payload).size(), bytes.size());
    }
  }
}

}  // namespace
}  // namespace baton::transfer
