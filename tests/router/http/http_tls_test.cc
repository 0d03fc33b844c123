#include "router/http/http_tls.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/test_certificates.h"

namespace baton::router {
namespace {

// HttpServer's handshakes are tested in tests/cluster/security_test.cc.
class HttpTlsTest : public ::testing::Test {
 protected:
  baton::testing::ModelDir dir_;
  baton::testing::FakeClock clock_;
  const baton::testing::TestCa ca_{dir_.path(), "ca"};
  const baton::testing::CertificateFiles files_ = ca_.Issue("server");
};

TEST_F(HttpTlsTest, ANewCertificateCountsOnceItsKeyIsThere) {
  const auto tls = *HttpTls::Load({files_.cert, files_.key, ca_.ca()}, clock_);
  const auto first = tls->Current();
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(tls->Current(), first);
  const auto next = ca_.Issue("next");
  std::filesystem::rename(next.cert, files_.cert);
  EXPECT_EQ(tls->Current(), first) << "not looked yet";
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(tls->Current(), first) << "the key is that of the last certificate";
  std::filesystem::rename(next.key, files_.key);
  clock_.Advance(absl::Seconds(2));
  const auto second = tls->Current();
  EXPECT_NE(second, first);
  dir_.Write("ca.pem", "no PEM\n");
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(tls->Current(), second);
}

TEST_F(HttpTlsTest, NeedsGoodFilesAtStart) {
  const auto other = ca_.Issue("other");
  for (const ServerTls& bad :
       {ServerTls{files_.cert, other.key, ""}, ServerTls{files_.cert, dir_.PathOf("none"), ""},
        ServerTls{ca_.ca() + "x", files_.key, ""}}) {
    EXPECT_EQ(ErrorReason(HttpTls::Load(bad, clock_).status()), "BAD_TLS_FILES");
  }
}

}  // namespace
}  // namespace baton::router
