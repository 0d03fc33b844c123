#include "decode_worker/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <string>

namespace baton::decode_worker {
namespace {

// The value of a counter without labels of its own; -1: there is none of that name.
double CounterOf(const prometheus::Registry& registry, const std::string& name) {
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.name == name) return family.metric.at(0).counter.value;
  }
  return -1;
}

TEST(DecodeMetricsTest, DraftsAddUp) {
  prometheus::Registry registry;
  DecodeMetrics metrics(registry, "m");
  EXPECT_EQ(CounterOf(registry, "baton_decode_draft_tokens_total"), 0) << "before the first draft";
  metrics.Drafted(/*steps=*/2, /*drafted=*/16, /*accepted=*/9);
  metrics.Drafted(/*steps=*/1, /*drafted=*/3, /*accepted=*/0);
  EXPECT_EQ(CounterOf(registry, "baton_decode_drafted_steps_total"), 3);
  EXPECT_EQ(CounterOf(registry, "baton_decode_draft_tokens_total"), 19);
  EXPECT_EQ(CounterOf(registry, "baton_decode_accepted_draft_tokens_total"), 9);
  metrics.Drafting(absl::Milliseconds(250));
  metrics.Drafting(absl::Milliseconds(500));
  EXPECT_EQ(CounterOf(registry, "baton_decode_drafting_seconds_total"), 0.75);
}

}  // namespace
}  // namespace baton::decode_worker
