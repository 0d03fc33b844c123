#include "router/routing/policy.h"

#include <gtest/gtest.h>

#include <set>

namespace baton::router {
namespace {

Candidate Prefill(int worker, int matched_blocks, int64_t queued_tokens) {
  Candidate c;
  c.worker = worker;
  c.matched_blocks = matched_blocks;
  c.queued_tokens = queued_tokens;
  return c;
}

Candidate Decode(int worker, int running, int free_blocks) {
  Candidate c;
  c.worker = worker;
  c.running = running;
  c.free_blocks = free_blocks;
  return c;
}

RouteQuery Query(int prompt_tokens, int prompt_blocks) {
  RouteQuery query;
  query.prompt_tokens = prompt_tokens;
  query.prompt_blocks = prompt_blocks;
  return query;
}

TEST(PolicyTest, LongestPrefixBeatsLoad) {
  PrefixThenLoad policy;
  const auto choice =
      policy.Choose(Query(64, 4), {Prefill(0, 1, 0), Prefill(1, 3, 5000)}, {Decode(2, 0, 10)});
  EXPECT_EQ(choice.prefill, 1);
  EXPECT_EQ(choice.decision, "prefix");
}

TEST(PolicyTest, EqualPrefixesGoToTheLeastLoaded) {
  PrefixThenLoad policy;
  const auto choice =
      policy.Choose(Query(64, 4), {Prefill(0, 0, 900), Prefill(1, 0, 100)}, {Decode(2, 0, 10)});
  EXPECT_EQ(choice.prefill, 1);
  EXPECT_EQ(choice.decision, "load");
}

TEST(PolicyTest, DecodeNeedsRoomFirstThenFewSequences) {
  PrefixThenLoad policy;
  auto choice = policy.Choose(Query(64, 4), {Prefill(0, 0, 0)}, {Decode(1, 0, 3), Decode(2, 9, 4)});
  EXPECT_EQ(choice.decode, 1) << "the idle one has no room for four blocks";
  choice = policy.Choose(Query(64, 4), {Prefill(0, 0, 0)}, {Decode(1, 3, 50), Decode(2, 2, 8)});
  EXPECT_EQ(choice.decode, 1);
}

TEST(PolicyTest, WithoutPrefillWorkersTheDecodeWorkerThatHasThePromptIsBest) {
  PrefixThenLoad policy;
  std::vector<Candidate> decode = {Decode(1, 0, 10), Decode(2, 5, 10), Decode(3, 0, 0)};
  decode[1].matched_blocks = 2;
  decode[2].matched_blocks = 3;
  const auto choice = policy.Choose(Query(64, 4), {}, decode);
  EXPECT_EQ(choice.decode, 1) << "the third has no room";
  EXPECT_EQ(choice.prefill, -1);
  EXPECT_EQ(choice.decision, "decode_only");
}

TEST(PolicyTest, TiesAreTakenInTurnAndTheTurnIsDeterministic) {
  PrefixThenLoad a, b;
  std::set<int> seen;
  for (int i = 0; i < 9; ++i) {
    const std::vector<Candidate> prefill = {Prefill(0, 2, 7), Prefill(1, 2, 7), Prefill(2, 2, 7)};
    const std::vector<Candidate> decode = {Decode(3, 0, 9), Decode(4, 0, 9)};
    const auto from_a = a.Choose(Query(64, 4), prefill, decode);
    const auto from_b = b.Choose(Query(64, 4), prefill, decode);
    EXPECT_EQ(from_a.prefill, from_b.prefill);
    EXPECT_EQ(from_a.decode, from_b.decode);
    seen.insert(from_a.prefill);
  }
  EXPECT_EQ(seen.size(), 3u);
}

TEST(PolicyTest, RoundRobinTakesBothRolesInTurnWhateverTheyHold) {
  RoundRobin policy;
  const std::vector<Candidate> prefill = {Prefill(0, 4, 0), Prefill(1, 0, 5000)};
  const std::vector<Candidate> decode = {Decode(2, 0, 10), Decode(3, 30, 5), Decode(5, 7, 10)};
  std::vector<int> prefill_taken, decode_taken;
  for (int i = 0; i < 6; ++i) {
    const auto choice = policy.Choose(Query(64, 4), prefill, decode);
    prefill_taken.push_back(choice.prefill);
    decode_taken.push_back(choice.decode);
    EXPECT_EQ(choice.decision, choice.prefill == 0 ? "prefix" : "load");
  }
  EXPECT_EQ(prefill_taken, (std::vector<int>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(decode_taken, (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(PolicyTest, RoundRobinTakesDecodeWorkersWithRoomFirst) {
  RoundRobin policy;
  std::vector<Candidate> decode = {Decode(1, 0, 3), Decode(2, 0, 4), Decode(4, 0, 4)};
  decode[0].matched_blocks = 1;  // so that it lacks no more than it has room for
  EXPECT_EQ(policy.Choose(Query(64, 4), {}, decode).decode, 0);
  decode[1].free_blocks = 3;
  EXPECT_EQ(policy.Choose(Query(64, 4), {}, decode).decode, 2) << "the second has no room";
  const auto choice = policy.Choose(Query(64, 4), {}, decode);
  EXPECT_EQ(choice.decode, 0);
  EXPECT_EQ(choice.prefill, -1);
  EXPECT_EQ(choice.decision, "decode_only");
  for (Candidate& c : decode) c.free_blocks = 0;
  decode[0].matched_blocks = 0;
  EXPECT_EQ(policy.Choose(Query(64, 4), {}, decode).decode, 1) << "in turn where none has room";
}

// A worker that leaves or comes keeps the others from being passed over or taken twice in a row.
TEST(PolicyTest, RoundRobinGoesOnBehindTheLastOneTaken) {
  RoundRobin policy;
  EXPECT_EQ(policy.Choose(Query(64, 4), {}, {Decode(1, 0, 9), Decode(2, 0, 9)}).decode, 0);
  EXPECT_EQ(policy.Choose(Query(64, 4), {}, {Decode(2, 0, 9), Decode(3, 0, 9)}).decode, 0);
  EXPECT_EQ(policy.Choose(Query(64, 4), {}, {Decode(1, 0, 9), Decode(3, 0, 9)}).decode, 1);
  EXPECT_EQ(policy.Choose(Query(64, 4), {}, {Decode(1, 0, 9), Decode(3, 0, 9)}).decode, 0);
}

}  // namespace
}  // namespace baton::router
