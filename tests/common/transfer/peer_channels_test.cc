#include "common/transfer/peer_channels.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::transfer {
namespace {

TEST(PeerChannelsTest, OneChannelAnAddressAndABound) {
  PeerChannels peers;
  const std::shared_ptr<grpc::Channel> first = peers.Get("127.0.0.1:1");
  EXPECT_EQ(peers.Get("127.0.0.1:1"), first);
  for (size_t i = 0; i < PeerChannels::kMaxChannels; ++i) {
    peers.Get(absl::StrCat("127.0.0.1:", 1000 + i));
  }
  // Pushed out by the others: a new channel, while the old one lives with whoever holds it.
  EXPECT_NE(peers.Get("127.0.0.1:1"), first);
}

}  // namespace
}  // namespace baton::transfer
