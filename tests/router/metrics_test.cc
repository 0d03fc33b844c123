#include "router/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/testing/histogram_quantile.h"
#include "tests/testing/seed.h"

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

// Messages of one to eight tokens: the histogram reads as if each token had come alone.
TEST_F(TokenGapsTest, QuantilesAreThoseOfTheTokens) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> seconds(std::log(0.02), 1);
  std::vector<double> tokens;
  RouterMetrics::TokenGaps gaps;
  for (int message = 0; message < 2000; ++message) {
    const int count = 1 + static_cast<int>(random() % 8);
    const double gap = seconds(random);
    tokens.insert(tokens.end(), static_cast<size_t>(count), gap / count);
    gaps.Add(absl::Seconds(gap), count);
    if (gaps.count() >= 64) metrics_.NextTokens(&gaps);
  }
  metrics_.NextTokens(&gaps);
  const RouterMetrics::Histogram read = metrics_.ReadTotals()->inter_token_latency;
  const std::vector<double> counts(read.counts.begin(), read.counts.end());
  EXPECT_EQ(counts.back(), tokens.size());
  for (const double quantile : {0.5, 0.9, 0.99}) {
    const double exact = testing::ExactQuantile(quantile, tokens);
    const double estimate = testing::HistogramQuantile(quantile, read.bounds_s, counts);
    EXPECT_LE(std::abs(testing::BucketOf(estimate, read.bounds_s) -
                       testing::BucketOf(exact, read.bounds_s)),
              1)
        << quantile << ": " << estimate << " read, " << exact << " true";
  }
}

}  // namespace
}  // namespace baton::router
