#include "common/telemetry/metric_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <set>
#include <thread>

#include "absl/strings/str_cat.h"

namespace baton::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MetricSetTest : public ::testing::Test {
 protected:
  std::vector<prometheus::ClientMetric> SeriesOf(const std::string& name) const {
    for (const prometheus::MetricFamily& family : registry_.Collect()) {
      if (family.name == name) return family.metric;
    }
    return {};
  }
  // The values of a label of all series.
  std::multiset<std::string> ValuesOf(const std::string& name, const std::string& label) const {
    std::multiset<std::string> values;
    for (const prometheus::ClientMetric& metric : SeriesOf(name)) {
      for (const auto& one : metric.label) {
        if (one.name == label) values.insert(one.value);
      }
    }
    return values;
  }

  prometheus::Registry registry_;
  MetricSet set_{registry_, "decode", "tiny"};
};

TEST_F(MetricSetTest, EverySeriesHasRoleAndModel) {
  set_.Counter("baton_a_total", "A.");
  set_.Gauges("baton_b", "B.", {{"state", {"on", "off"}}});
  set_.Histogram("baton_c_seconds", "C.", {1, 2});
  int series = 0;
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    for (size_t i = 0; i < family.metric.size(); ++i, ++series) {
      EXPECT_THAT(ValuesOf(family.name, "role").count("decode"), family.metric.size());
      EXPECT_THAT(ValuesOf(family.name, "model").count("tiny"), family.metric.size());
    }
  }
  EXPECT_EQ(series, 1 + 1 + 2 + 1) << "with the build info";
}

TEST_F(MetricSetTest, DeclaredValuesHaveSeriesFromTheStart) {
  set_.Counters("baton_a_total", "A.", {{"code", {"200", "404"}}, {"route", {"x", "y", "z"}}});
  EXPECT_EQ(SeriesOf("baton_a_total").size(), 6u);
  EXPECT_EQ(ValuesOf("baton_a_total", "code").count("404"), 3u);
  set_.Counters("baton_b_total", "B.", {{"code", {}}});
  EXPECT_THAT(SeriesOf("baton_b_total"), IsEmpty());
}

TEST_F(MetricSetTest, DescriptionsAreInTheOrderOfDeclaration) {
  set_.Histogram("baton_b_seconds", "B.", {1, 2});
  set_.Counters("baton_a_total", "A.", {{"code", {"200"}}});
  const std::vector<MetricDescription>& all = set_.descriptions();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "baton_build_info");
  EXPECT_EQ(all[1].type, "histogram");
  EXPECT_THAT(all[1].bounds, ElementsAre(1, 2));
  EXPECT_EQ(all[2].help, "A.");
  EXPECT_EQ(all[2].labels[0].name, "code");
}

TEST_F(MetricSetTest, AFamilyHasABoundOnItsSeries) {
  auto family = set_.Counters("baton_a_total", "A.", {{"reason", {"known"}}});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&family] {
      for (int i = 0; i < 1000; ++i) family.With({absl::StrCat("reason", i)}).Increment();
    });
  }
  for (std::thread& thread : threads) thread.join();
  family.With({"known"}).Increment();
  const size_t most = Family<prometheus::Counter>::kMaxSeries;
  const std::vector<prometheus::ClientMetric> series = SeriesOf("baton_a_total");
  EXPECT_EQ(series.size(), most + 1);
  EXPECT_EQ(ValuesOf("baton_a_total", "reason").count("other"), 1u);
  double sum = 0;
  for (const prometheus::ClientMetric& metric : series) sum += metric.counter.value;
  EXPECT_EQ(sum, 4001) << "what has no series of its own is counted";
}

TEST_F(MetricSetTest, FactsAreLabelsOfAGaugeThatIsOne) {
  set_.Info("baton_cache_config_info", "Cache.", {{"block_size", "16"}, {"dtype", "float16"}});
  ASSERT_EQ(SeriesOf("baton_cache_config_info").size(), 1u);
  EXPECT_EQ(SeriesOf("baton_cache_config_info")[0].gauge.value, 1);
  EXPECT_THAT(ValuesOf("baton_cache_config_info", "block_size"), ElementsAre("16"));
  EXPECT_EQ(ValuesOf("baton_build_info", "version").size(), 1u);
}

}  // namespace
}  // namespace baton::telemetry
