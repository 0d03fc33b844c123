// Retained and warm prefixes, and explained cache misses, in a whole cluster.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/rpc/grpc_status.h"
#include "tests/cluster/whole_cluster.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

constexpr int kPoolBlocks = 64;
constexpr int kRubricTokens = 10 * 16;

class PrefixCareTest : public WholeClusterTest {
 protected:
  // No answer is compared.
  static void SetUpTestSuite() {}
  static void TearDownTestSuite() {}

  static std::vector<int32_t> RandomTokens(int count, std::mt19937& random) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocabulary);
    return tokens;
  }
  // One token after `beginning` and 16 tokens that no other prompt has.
  baton::v1::Usage Ask(std::vector<int32_t> beginning, std::mt19937& random, int priority = 0,
                       bool explain = false) {
    GenerateRequest request;
    const std::vector<int32_t> own = RandomTokens(16, random);
    beginning.insert(beginning.end(), own.begin(), own.end());
    request.mutable_token_ids()->mutable_ids()->Assign(beginning.begin(), beginning.end());
    request.mutable_stop()->set_max_tokens(1);
    request.set_explain_cache(explain);
    if (priority > 0) {
      request.mutable_retention()->set_until_token(kRubricTokens);
      request.mutable_retention()->set_priority(priority);
      request.mutable_retention()->set_ttl_ms(3'600'000);
    }
    const Answer answer = Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer.usage;
  }
};

// Two rubrics are asked for equally often, between other prompts of ten times the pools. The one
// that is retained stays, on workers that never got a request for it too, because it was warmed.
TEST_F(PrefixCareTest, ARetainedRubricOutlivesAFloodOfTenPools) {
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = kPoolBlocks;
  StartCluster(options, {}, AllPromptsMove());
  std::mt19937 random(testing::TestSeed());
  const std::vector<int32_t> retained = RandomTokens(kRubricTokens, random);
  const std::vector<int32_t> plain = RandomTokens(kRubricTokens, random);

  auto admin = baton::v1::AdminService::NewStub(channel_);
  baton::v1::WarmPrefixRequest warm;
  warm.mutable_token_ids()->mutable_ids()->Assign(retained.begin(), retained.end());
  warm.mutable_retention()->set_priority(50);
  warm.mutable_retention()->set_ttl_ms(3'600'000);
  baton::v1::WarmPrefixResponse warmed;
  {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    const absl::Status status = FromGrpcStatus(admin->WarmPrefix(&context, warm, &warmed));
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_EQ(warmed.prefix().workers_size(), 2);
  for (const auto& worker : warmed.prefix().workers()) EXPECT_EQ(worker.error(), "");
  Ask(plain, random);

  int64_t retained_cached = 0, plain_cached = 0, asked = 0;
  constexpr int kFloodTokens = 24 * 16;
  for (int flooded = 0; flooded < 10 * 2 * kPoolBlocks * 16;) {
    for (int i = 0; i < 8; ++i, flooded += kFloodTokens) {
      Ask(RandomTokens(kFloodTokens, random), random);
    }
    retained_cached += Ask(retained, random, 50).cached_prompt_tokens();
    const baton::v1::Usage usage = Ask(plain, random, 0, /*explain=*/true);
    plain_cached += usage.cached_prompt_tokens();
    if (usage.cached_prompt_tokens() == 0) {
      EXPECT_EQ(usage.cache_miss().cause(), baton::v1::CACHE_MISS_CAUSE_EVICTED);
      EXPECT_EQ(usage.cache_miss().lost_tokens(), kRubricTokens);
    }
    asked += kRubricTokens;
  }
  EXPECT_GE(static_cast<double>(retained_cached), 0.95 * static_cast<double>(asked));
  // How often depends on which worker the flood goes to, and so on what steps took.
  EXPECT_LT(plain_cached, asked) << "the flood was none";

  // Never above the bound; on the prefill workers it is the rubric.
  baton::v1::GetLoadsResponse loads;
  grpc::ClientContext context;
  context.set_deadline(testing::TestDeadline());
  ASSERT_TRUE(admin->GetLoads(&context, {}, &loads).ok());
  for (const baton::v1::WorkerLoad& load : loads.workers()) {
    EXPECT_LE(load.retained_blocks(), kPoolBlocks / 4);
    if (load.role() == baton::v1::WORKER_ROLE_PREFILL) {
      EXPECT_EQ(load.retained_blocks(), kRubricTokens / 16);
    }
  }
  ExpectIdle();
}

}  // namespace
}  // namespace baton
