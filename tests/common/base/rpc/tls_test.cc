#include "common/base/rpc/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/server.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/test_certificates.h"

namespace baton {
namespace {

class TlsTest : public ::testing::Test {
 protected:
  std::unique_ptr<RpcServer> Start(const ServerTls& tls) {
    RpcServerOptions options;
    options.tls = tls;
    auto server = RpcServer::Start(options, {}, {});
    BATON_CHECK(server.ok()) << server.status();
    return *std::move(server);
  }
  // Whether a new connection works.
  static bool Connects(const RpcServer& server, const ChannelTls& tls) {
    return Connects(server.address(), tls);
  }
  static bool Connects(const std::string& address, const ChannelTls& tls) {
    const auto channel = MakeChannel(address, kPeerChannel, MakeChannelSecurity(tls, nullptr));
    grpc_connectivity_state state = channel->GetState(true);
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
    while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
      if (!channel->WaitForStateChange(state, deadline)) return false;
      state = channel->GetState(true);
    }
    return state == GRPC_CHANNEL_READY;
  }

  testing::ModelDir dir_;
  const testing::TestCa ca_{dir_.path(), "ca"}, other_{dir_.path(), "other"};
  const ChannelTls trusts_ca_{false, ca_.ca(), "", "", ""};
  const ChannelTls trusts_other_{false, other_.ca(), "", "", ""};
};

TEST_F(TlsTest, ClientsRefuseAServerThatIsExpiredOrOfAnotherCa) {
  const auto good = ca_.Issue("good"), expired = ca_.Issue("expired", -60);
  const auto server = Start({good.cert, good.key, ""});
  EXPECT_TRUE(Connects(*server, trusts_ca_));
  EXPECT_FALSE(Connects(*server, trusts_other_));
  EXPECT_FALSE(Connects(*server, ChannelTls()));
  ChannelTls named = trusts_ca_;
  named.server_name = "localhost";  // the certificate's other name
  EXPECT_TRUE(Connects(*server, named));
  named.server_name = "another.example";
  EXPECT_FALSE(Connects(*server, named));
  EXPECT_FALSE(Connects(*Start({expired.cert, expired.key, ""}), trusts_ca_));
}

TEST_F(TlsTest, NewConnectionsUseNewFiles) {
  const auto before = ca_.Issue("server");
  const auto server = Start({before.cert, before.key, ""});
  EXPECT_TRUE(Connects(*server, trusts_ca_));
  other_.Issue("server");  // the same paths
  // Nothing announces that the server has read them: each attempt to connect asks.
  const absl::Time end = absl::Now() + absl::Seconds(60);
  bool connects = false;
  while (!connects && absl::Now() < end) connects = Connects(*server, trusts_other_);
  EXPECT_TRUE(connects);
  EXPECT_FALSE(Connects(*server, trusts_ca_));
}

TEST_F(TlsTest, AUnixSocketIsServedBesidesWithoutTls) {
  const auto files = ca_.Issue("server");
  RpcServerOptions options;
  options.tls = {files.cert, files.key, ca_.ca()};
  options.unix_socket = dir_.path() + "/socket";
  const auto server = RpcServer::Start(options, {}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(Connects("unix:" + options.unix_socket, ChannelTls()));
  EXPECT_FALSE(Connects(**server, ChannelTls()));
  EXPECT_FALSE(Connects(**server, trusts_ca_));  // without a certificate
  options.unix_socket = dir_.path() + "/no/such/directory";
  const auto other = RpcServer::Start(options, {}, {});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.status().message(), ::testing::HasSubstr(options.unix_socket));
}

}  // namespace
}  // namespace baton
