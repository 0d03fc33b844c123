#include "router/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <sstream>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

class TokenGapsTest : public ::testing::Test {
 protected:
  void ExpectLine(const std::string& suffix_and_more, const std::string& value) {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, registry_.Collect());
    EXPECT_THAT(out.str(), HasSubstr(absl::StrCat("baton_inter_token_latency_seconds_",
                                                  suffix_and_more, "} ", value, "\n")));
  }
  prometheus::Registry registry_;
  RouterMetrics metrics_{&registry_, "tiny"};
};

TEST_F(TokenGapsTest, EachTokenIsInItsBucketOnce) {
  const std::string labels = R"({model="tiny",role="router")";
  RouterMetrics::TokenGaps gaps;
  gaps.Add(absl::Milliseconds(8), 4);  // 2 ms each, a bound: it belongs to what ends there
  gaps.Add(absl::Microseconds(2100), 1);
  gaps.Add(absl::Seconds(1000), 1);  // beyond all bounds
  gaps.Add(absl::Seconds(1), 0);
  EXPECT_EQ(gaps.count(), 6);
  ExpectLine("count" + labels, "0");
  metrics_.NextTokens(&gaps);
  EXPECT_EQ(gaps.count(), 0);
  ExpectLine("count" + labels, "6");
  ExpectLine("bucket" + labels + R"(,le="0.001")", "0");
  ExpectLine("bucket" + labels + R"(,le="0.002")", "4");
  ExpectLine("bucket" + labels + R"(,le="0.005")", "5");
  ExpectLine("bucket" + labels + R"(,le="2.5")", "5");
  ExpectLine("bucket" + labels + R"(,le="+Inf")", "6");
  metrics_.NextTokens(&gaps);
  ExpectLine("count" + labels, "6");
  gaps.Add(absl::Milliseconds(1), 1);
  metrics_.NextTokens(&gaps);
  ExpectLine("count" + labels, "7");
}

}  // namespace
}  // namespace baton::router
