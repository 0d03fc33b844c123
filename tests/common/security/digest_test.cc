#include "common/security/digest.h"

#include <gtest/gtest.h>

#include <set>

namespace baton::security {
namespace {

TEST(Digest, IsSha256) {
  // FIPS 180-4, the example "abc".
  EXPECT_EQ(ToHex(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ToHex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Digest, IsHmac) {
  // RFC 4231, test case 2.
  EXPECT_EQ(ToHex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_NE(ToHex(HmacSha256("", "")), ToHex(Sha256("")));
}

TEST(Digest, HexRoundTrip) {
  const Digest digest = Sha256("x");
  ASSERT_TRUE(FromHex(ToHex(digest)));
  EXPECT_TRUE(SameDigest(*FromHex(ToHex(digest)), digest));
  EXPECT_FALSE(SameDigest(digest, Sha256("y")));
  EXPECT_FALSE(FromHex(ToHex(digest).substr(1)));
  EXPECT_FALSE(FromHex("g" + ToHex(digest).substr(1)));
}

TEST(Digest, RandomTokensDiffer) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(RandomToken());
  EXPECT_EQ(tokens.size(), 100u);
  for (const std::string& token : tokens) EXPECT_EQ(token.size(), 43u) << token;
}

}  // namespace
}  // namespace baton::security
