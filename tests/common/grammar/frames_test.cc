#include "common/grammar/frames.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace baton::grammar {
namespace {

TEST(FramesTest, WhatIsWrittenIsRead) {
  FrameWriter writer;
  writer.Number(~uint64_t{0}).Text("").Text(std::string("a\0b", 3)).Ids({-1, 7}).Words({});
  FrameReader reader(writer.bytes());
  EXPECT_EQ(reader.Number(), ~uint64_t{0});
  EXPECT_EQ(reader.Text(), "");
  EXPECT_EQ(reader.Text(), std::string("a\0b", 3));
  EXPECT_EQ(reader.Ids(), (std::vector<int32_t>{-1, 7}));
  EXPECT_TRUE(reader.Words().empty());
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.Number(), 0u);
  EXPECT_FALSE(reader.ok());
}

TEST(FramesTest, NoPrefixOfAFrameIsReadAsTheWhole) {
  FrameWriter writer;
  writer.Number(1).Text("text").Words({1, 2, 3});
  for (size_t size = 0; size < writer.bytes().size(); ++size) {
    FrameReader reader(absl::string_view(writer.bytes()).substr(0, size));
    reader.Number();
    reader.Text();
    reader.Words();
    EXPECT_FALSE(reader.ok()) << size;
  }
}

class FrameSocketsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets_), 0); }
  void TearDown() override {
    close(sockets_[0]);
    if (sockets_[1] >= 0) close(sockets_[1]);
  }
  int sockets_[2];
};

TEST_F(FrameSocketsTest, FramesArriveInOrder) {
  ASSERT_TRUE(SendFrame(sockets_[0], "one", absl::Seconds(5)).ok());
  ASSERT_TRUE(SendFrame(sockets_[0], "", absl::Seconds(5)).ok());
  EXPECT_EQ(ReceiveFrame(sockets_[1], absl::Seconds(5)).value(), "one");
  EXPECT_EQ(ReceiveFrame(sockets_[1], absl::Seconds(5)).value(), "");
}

TEST_F(FrameSocketsTest, SilenceAHangingReaderAndAnEndAreErrors) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(ReceiveFrame(sockets_[0], absl::Milliseconds(1)).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      SendFrame(sockets_[0], std::string(size_t{8} << 20, 'x'), absl::Milliseconds(1))));
  close(std::exchange(sockets_[1], -1));
  EXPECT_TRUE(absl::IsUnavailable(ReceiveFrame(sockets_[0], absl::Seconds(5)).status()));
  EXPECT_TRUE(absl::IsUnavailable(SendFrame(sockets_[0], "x", absl::Seconds(5))));
}

TEST_F(FrameSocketsTest, ALengthBeyondTheBoundIsRefusedBeforeMemoryIsTaken) {
  const unsigned char heading[4] = {0xff, 0xff, 0xff, 0xff};
  ASSERT_EQ(write(sockets_[0], heading, 4), 4);
  EXPECT_TRUE(absl::IsInternal(ReceiveFrame(sockets_[1], absl::Seconds(5)).status()));
}

}  // namespace
}  // namespace baton::grammar
