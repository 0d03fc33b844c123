#include "cli/bench/conversations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ConversationOptions Drawn() {
  ConversationOptions options;
  options.conversations = 6;
  options.turns = 4;
  options.tools_tokens = 50;
  options.user_tokens = 9;
  options.answer_tokens = 5;
  options.think_s = 2;
  options.seed = 3;
  return options;
}

std::vector<size_t> Lengths(const Conversation& conversation) {
  std::vector<size_t> lengths;
  for (const ConversationTurn& turn : conversation.turns) lengths.push_back(turn.tokens.size());
  return lengths;
}

TEST(BenchConversationsTest, DrawnOnesHaveTheirLengthsAndShareTheTools) {
  const auto made = MakeConversations(Drawn(), 100, 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->shared_tokens, 50);
  EXPECT_EQ(made->turns_left_out, 0);
  ASSERT_EQ(made->conversations.size(), 6u);
  const std::vector<int32_t>& first = made->conversations[0].turns[0].tokens;
  for (const Conversation& conversation : made->conversations) {
    EXPECT_EQ(conversation.start_s, 0);
    EXPECT_THAT(Lengths(conversation), ElementsAre(59, 9, 9, 9));
    const std::vector<int32_t>& opening = conversation.turns[0].tokens;
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + 50, opening.begin()));
    EXPECT_EQ(opening == first, &conversation == &made->conversations[0]);
    EXPECT_EQ(conversation.turns[0].think_s, 0);
    for (const ConversationTurn& turn : conversation.turns) EXPECT_EQ(turn.output_tokens, 5);
  }
}

TEST(BenchConversationsTest, ThinkTimesAreExponentialAndLengthsVaryWithinTheRatio) {
  ConversationOptions options = Drawn();
  options.conversations = 500;
  options.turns = 9;
  options.range_ratio = 0.5;
  const auto made = MakeConversations(options, 100, 0);
  double sum_s = 0, sum_user = 0;
  int longer = 0, count = 0;
  for (const Conversation& conversation : made->conversations) {
    for (size_t i = 1; i < conversation.turns.size(); ++i) {
      const ConversationTurn& turn = conversation.turns[i];
      sum_s += turn.think_s;
      longer += turn.think_s > 2;
      sum_user += static_cast<double>(turn.tokens.size());
      EXPECT_GE(turn.tokens.size(), 4u);
      EXPECT_LE(turn.tokens.size(), 14u);
      EXPECT_GE(turn.output_tokens, 2);
      EXPECT_LE(turn.output_tokens, 8);
      ++count;
    }
  }
  // Of 4,000: the mean of an exponential distribution has a deviation of 2 / sqrt(4000).
  EXPECT_THAT(sum_s / count, DoubleNear(2, 0.15));
  EXPECT_THAT(static_cast<double>(longer) / count, DoubleNear(0.368, 0.04));
  EXPECT_THAT(sum_user / count, DoubleNear(9, 0.3));
}

TEST(BenchConversationsTest, ASeedGivesTheSameConversationsAgain) {
  ConversationOptions options = Drawn();
  options.rate = 3;
  const auto tokens = [&](uint64_t seed) {
    options.seed = seed;
    const auto made = MakeConversations(options, 100, 0);
    std::vector<int32_t> all;
    for (const Conversation& conversation : made->conversations) {
      all.push_back(static_cast<int32_t>(conversation.start_s * 1e6));
      for (const ConversationTurn& turn : conversation.turns) {
        all.insert(all.end(), turn.tokens.begin(), turn.tokens.end());
        all.push_back(static_cast<int32_t>(turn.think_s * 1e6));
      }
    }
    return all;
  };
  EXPECT_EQ(tokens(1), tokens(1));
  EXPECT_NE(tokens(1), tokens(2));
  const auto made = MakeConversations(options, 100, 0);
  EXPECT_NEAR(made->conversations.back().start_s, 2, 1e-9) << "the mean rate is exact";
}

TEST(BenchConversationsTest, TurnsBeyondTheContextAreLeftOut) {
  // 64, 78, 92 and 106 tokens with the answers.
  const auto made = MakeConversations(Drawn(), 100, 92);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->turns_left_out, 6);
  EXPECT_THAT(Lengths(made->conversations[5]), ElementsAre(59, 9, 9));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeConversations(Drawn(), 100, 63).status()));
}

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() {
    options_.trace = ::testing::TempDir() + absl::StrCat("/conversations-", getpid());
    options_.trace_block_tokens = 10;
    options_.conversations = 100;
    options_.turns = std::numeric_limits<int>::max();
    options_.min_turns = 1;
  }
  ~TraceTest() override { unlink(options_.trace.c_str()); }

  absl::StatusOr<Conversations> Read(const std::string& lines) {
    std::ofstream(options_.trace) << lines;
    return MakeConversations(options_, 100, 0);
  }

  ConversationOptions options_;
};

std::string Line(int ms, int input, int output, const std::string& blocks) {
  return absl::StrCat("{\"timestamp\": ", ms, ", \"input_length\": ", input,
                      ", \"output_length\": ", output, ", \"hash_ids\": [", blocks, "]}\n");
}

TEST_F(TraceTest, LinesThatContinueOthersAreTheirTurns) {
  const auto made = Read(Line(100, 25, 4, "1, 2, 3") +          // a
                         Line(150, 27, 5, "1, 7, 8") +          // b: one block in common
                         Line(400, 44, 6, "1, 2, 9, 10, 11") +  // a again
                         Line(500, 28, 3, "1, 7, 12") +         // too short to continue b
                         Line(900, 77, 2, "1, 2, 9, 10, 13, 14, 15, 16"));
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->conversations.size(), 3u);
  EXPECT_EQ(made->shared_tokens, 0);
  const Conversation& a = made->conversations[0];
  EXPECT_THAT(Lengths(a), ElementsAre(25, 15, 27));
  EXPECT_EQ(a.start_s, 0);
  EXPECT_NEAR(a.turns[1].at_s, 0.3, 1e-9);
  EXPECT_NEAR(a.turns[2].at_s, 0.8, 1e-9);
  EXPECT_EQ(a.turns[1].output_tokens, 6);
  EXPECT_EQ(a.turns[1].think_s, 0);
  const Conversation& b = made->conversations[1];
  EXPECT_THAT(Lengths(b), ElementsAre(27));
  EXPECT_NEAR(b.start_s, 0.05, 1e-9);
  // Blocks that two conversations share are equal tokens.
  const auto& of_a = a.turns[0].tokens;
  const auto& of_b = b.turns[0].tokens;
  EXPECT_TRUE(std::equal(of_a.begin(), of_a.begin() + 10, of_b.begin()));
  EXPECT_NE(of_a[10], of_b[10]);
  const auto& of_c = made->conversations[2].turns[0].tokens;
  EXPECT_TRUE(std::equal(of_b.begin(), of_b.begin() + 20, of_c.begin()));
}

TEST_F(TraceTest, FlagsOfTheTrace) {
  options_.length_divisor = 5;
  options_.min_turns = 2;
  options_.turns = 2;
  options_.trace_seconds = 1;
  const std::string lines = Line(3, 500, 40,
                                 "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "
                                 "16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, "
                                 "29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, "
                                 "42, 43, 44, 45, 46, 47, 48, 49, 50");
  const auto short_one =
      Read(Line(1, 30, 4, "90, 91, 92") + Line(2, 31, 4, "70, 71, 72") +
           Line(4, 40, 4, "90, 91, 92, 93") + Line(6, 50, 3, "90, 91, 92, 93, 94"));
  ASSERT_TRUE(short_one.ok()) << short_one.status();
  ASSERT_EQ(short_one->conversations.size(), 1u) << "the other has one turn";
  EXPECT_THAT(Lengths(short_one->conversations[0]), ElementsAre(6, 1));
  EXPECT_EQ(short_one->conversations[0].turns[1].at_s, 3);
  options_.min_turns = 1;
  EXPECT_THAT(Lengths(Read(lines)->conversations[0]), ElementsAre(100));
  options_.rate = 10;
  EXPECT_NEAR(Read(lines)->conversations[0].start_s, 0.1, 1e-9);
}

TEST_F(TraceTest, BadFilesAreNamedWithTheirLine) {
  EXPECT_THAT(std::string(Read(Line(1, 30, 4, "1, 2, 3") + "{}\n").status().message()),
              HasSubstr(options_.trace + ":2: expected"));
  options_.min_turns = 2;
  EXPECT_THAT(std::string(Read(Line(1, 30, 4, "1, 2, 3")).status().message()),
              HasSubstr("no conversation of so many turns"));
  options_.trace = "/no/such/file";
  EXPECT_TRUE(absl::IsNotFound(MakeConversations(options_, 100, 0).status()));
}

}  // namespace
}  // namespace baton::cli
