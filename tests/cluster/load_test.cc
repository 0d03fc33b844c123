// A busy cluster: 64 clients, random cancels, pools that are far too small, caches on. Every answer
// that ends is the oracle's, every one that was cancelled is a prefix of it, and no block stays
// behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/cluster/whole_cluster.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

class LoadTest : public WholeClusterTest {
 protected:
  double DecodeMetricSum(const std::string& name) {
    double sum = 0;
    for (const auto& worker : decode_) sum += testing::MetricSum(worker->metrics_address(), name);
    return sum;
  }
};

TEST_F(LoadTest, TwoThousandRequestsFromSixtyFourClients) {
  constexpr int kClients = 64;
  constexpr int kRequests = 2000;
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = 64;  // a prompt of 400 tokens takes 25
  StartCluster(options);
  std::mt19937 random(seed);
  std::vector<Case> cases = MakeCases(*oracle_, 500, random(), /*max_tokens_bound=*/120);
  std::atomic<int> next{0};
  std::atomic<int> whole{0}, cancelled{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 dice(seed + 1 + static_cast<uint32_t>(client));
      auto stub = baton::v1::InferenceService::NewStub(channel_);
      for (int at; (at = next.fetch_add(1)) < kRequests;) {
        const Case& c = cases[static_cast<size_t>(at) % cases.size()];
        grpc::ClientContext context;
        context.set_deadline(testing::TestDeadline());
        auto reader = stub->Generate(&context, c.request);
        // One in four is cancelled: half of them before the first message, the others after some,
        // if there are so many: what a slow client has not read comes as one.
        const int some = dice() % 2 == 0 ? 0 : static_cast<int>(dice() % 20);
        const int cancel_after = dice() % 4 == 0 ? some : -1;
        std::vector<int32_t> tokens;
        GenerateResponse response;
        int messages = 0;
        if (cancel_after == 0) context.TryCancel();
        while (reader->Read(&response)) {
          tokens.insert(tokens.end(), response.token_ids().begin(), response.token_ids().end());
          if (++messages == cancel_after) context.TryCancel();
        }
        const absl::Status status = FromGrpcStatus(reader->Finish());
        if (status.ok()) {
          EXPECT_EQ(tokens, c.expected) << "case " << at;
          ++whole;
          continue;
        }
        EXPECT_GE(cancel_after, 0) << status;
        EXPECT_TRUE(absl::IsCancelled(status)) << status;
        ASSERT_LE(tokens.size(), c.expected.size());
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), c.expected.begin())) << "case " << at;
        ++cancelled;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(whole + cancelled, kRequests);
  EXPECT_GT(cancelled, kRequests / 20);
  EXPECT_GT(DecodeMetricSum("baton_preemptions_total"), 100) << "the pools were not too small";
  EXPECT_GT(DecodeMetricSum("baton_prefix_cache_hit_tokens_total"), 1000);
  ExpectIdle();
}

}  // namespace
}  // namespace baton
