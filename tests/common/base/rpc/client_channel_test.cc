#include "common/base/rpc/client_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/test_certificates.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kAddress[] = "localhost:1";

class ClientChannelTest : public ::testing::Test {
 protected:
  static void ExpectBad(const ChannelTls& tls, const std::string& named) {
    const absl::Status status = MakeClientChannel(kAddress, tls, "").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(ErrorReason(status), "BAD_TLS_FILES");
    EXPECT_THAT(status.message(), HasSubstr(named));
  }

  testing::ModelDir dir_;
  const testing::TestCa ca_{dir_.path(), "ca"};
  const testing::CertificateFiles own_ = ca_.Issue("own");
};

TEST_F(ClientChannelTest, TakesGoodFiles) {
  for (const ChannelTls& tls :
       {ChannelTls(), ChannelTls{true, "", "", "", ""}, ChannelTls{false, ca_.ca(), "", "", ""},
        ChannelTls{false, "", own_.cert, own_.key, ""},
        ChannelTls{false, ca_.ca(), own_.cert, own_.key, "name"}}) {
    const auto channel = MakeClientChannel(kAddress, tls, "");
    EXPECT_TRUE(channel.ok()) << channel.status();
  }
}

TEST_F(ClientChannelTest, RefusesACertificateWithoutItsKey) {
  ExpectBad({false, "", own_.cert, "", ""}, "together");
  ExpectBad({false, "", "", own_.key, ""}, "together");
  ExpectBad({false, ca_.ca(), "", own_.key, ""}, "together");
  ExpectBad({false, ca_.ca(), own_.cert, "", ""}, "together");
}

TEST_F(ClientChannelTest, NamesAFileThatCannotBeUsed) {
  dir_.Write("text", "no PEM\n");
  const std::string none = dir_.PathOf("none"), text = dir_.PathOf("text");
  for (const std::string& bad : {none, text, dir_.path()}) {
    ExpectBad({false, bad, "", "", ""}, bad);
    ExpectBad({false, "", bad, own_.key, ""}, bad);
    ExpectBad({false, "", own_.cert, bad, ""}, bad);
  }
}

TEST_F(ClientChannelTest, RefusesWhatIsNoAddress) {
  for (const std::string address : {"", "garbage", ":1", "host:", ":", "host:port",
                                    "127.0.0.1:65536", "127.0.0.1:0", "::1", "::1:80", "[::1"}) {
    const absl::Status status = MakeClientChannel(address, {}, "").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address << ": " << status;
    EXPECT_EQ(ErrorReason(status), "BAD_ADDRESS");
  }
  for (const std::string address : {"host:1", "[::1]:65535", "unix:socket", "dns:///host"}) {
    EXPECT_TRUE(MakeClientChannel(address, {}, "").ok()) << address;
  }
}

TEST_F(ClientChannelTest, RefusesWhatNoHeaderCanCarry) {
  for (const std::string key : {"secret\r", "secret\n", "secret\t",
                                "s\xc3\xa9"
                                "cret",
                                "secret\x7f"}) {
    const absl::Status status = MakeClientChannel(kAddress, {}, key).status();
    EXPECT_EQ(ErrorReason(status), "BAD_HEADER") << status;
    EXPECT_EQ(ErrorField(status), "api_key");
    EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("cret")));
    const absl::Status header = MakeClientChannel(kAddress, {}, "", {{"x-name", key}}).status();
    EXPECT_EQ(ErrorReason(header), "BAD_HEADER") << header;
    EXPECT_THAT(header.message(), HasSubstr("x-name"));
    EXPECT_THAT(header.message(), ::testing::Not(HasSubstr("cret")));
    EXPECT_TRUE(MakeClientChannel(kAddress, {}, "", {{"x-name-bin", key}}).ok());
  }
  for (const std::string name : {"", "X-Name", "x name", ":path", "x\n"}) {
    const absl::Status status = MakeClientChannel(kAddress, {}, "", {{name, "v"}}).status();
    EXPECT_EQ(ErrorReason(status), "BAD_HEADER") << name;
  }
  EXPECT_TRUE(MakeClientChannel(kAddress, {}, "a key", {{"x-name", "any ~text"}}).ok());
}

}  // namespace
}  // namespace baton
