#include "common/worker/socket_tokens.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/transfer/shared_pool.h"
#include "tests/testing/model_dir.h"

namespace baton::worker {
namespace {

TEST(SocketTokensTest, TheyFollowFromNameAndSecret) {
  baton::testing::ModelDir dir;
  const auto load = [&](const std::string& file, char letter) {
    dir.Write(file, std::string(32, letter) + "\n");
    return *security::SharedSecret::Load(dir.PathOf(file), Clock::Real());
  };
  const auto one = load("one", 'a'), same = load("same", 'a'), other = load("other", 'b');
  const WorkerOptions options;
  const auto token = [&](security::SharedSecret* secret, const std::string& name) {
    return SocketTokens(options, secret)(name);
  };
  EXPECT_EQ(token(one.get(), "socket").size(), transfer::kSocketTokenBytes);
  EXPECT_EQ(token(one.get(), "socket"), token(same.get(), "socket"));
  EXPECT_NE(token(one.get(), "socket"), token(one.get(), "socket2"));
  EXPECT_NE(token(one.get(), "socket"), token(other.get(), "socket"));
  EXPECT_NE(token(one.get(), "socket"), token(nullptr, "socket"));
  EXPECT_EQ(token(nullptr, "socket"), token(nullptr, "socket"));
}

// Who has no certificate must not read the pool.
TEST(SocketTokensTest, CertificatesAloneGiveNone) {
  WorkerOptions options;
  options.tls.client_ca = "ca.pem";
  EXPECT_EQ(SocketTokens(options, nullptr), nullptr);
}

}  // namespace
}  // namespace baton::worker
