#include "common/security/tls_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/test_certificates.h"

namespace baton::security {
namespace {

using ::testing::HasSubstr;

class TlsCheckTest : public ::testing::Test {
 protected:
  void ExpectBad(const ServerTls& tls, const std::string& named) {
    const absl::Status status = CheckTls(tls);
    EXPECT_EQ(ErrorReason(status), "BAD_TLS_FILES") << status;
    EXPECT_THAT(status.message(), HasSubstr(named));
  }

  baton::testing::ModelDir dir_;
  const baton::testing::TestCa ca_{dir_.path(), "ca"};
  const baton::testing::CertificateFiles server_ = ca_.Issue("server");
};

TEST_F(TlsCheckTest, TakesGoodFiles) {
  EXPECT_TRUE(CheckTls(ServerTls()).ok());
  EXPECT_TRUE(CheckTls(ChannelTls()).ok());
  EXPECT_TRUE(CheckTls(ServerTls{server_.cert, server_.key, ca_.ca()}).ok());
  EXPECT_TRUE(CheckTls(ChannelTls{false, ca_.ca(), "", "", ""}).ok());
  const auto expired = ca_.Issue("expired", -60);
  EXPECT_TRUE(CheckTls(ServerTls{expired.cert, expired.key, ""}).ok());
}

TEST_F(TlsCheckTest, NamesABadFile) {
  const auto other = ca_.Issue("other");
  dir_.Write("text", "no PEM\n");
  ExpectBad({server_.cert, other.key, ""}, other.key);
  ExpectBad({server_.cert, "", ""}, "together");
  ExpectBad({"", server_.key, ""}, "not given");
  ExpectBad({"", "", ca_.ca()}, "not given");
  ExpectBad({dir_.PathOf("text"), server_.key, ""}, dir_.PathOf("text"));
  ExpectBad({server_.cert, server_.key, dir_.PathOf("text")}, dir_.PathOf("text"));
  ExpectBad({server_.cert, dir_.PathOf("none"), ""}, dir_.PathOf("none"));
  EXPECT_FALSE(CheckTls(ChannelTls{true, dir_.PathOf("none"), "", "", ""}).ok());
}

}  // namespace
}  // namespace baton::security
