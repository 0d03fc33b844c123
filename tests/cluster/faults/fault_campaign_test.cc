// The fault table at a small scale, and the judges themselves: what they must not let pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/container/flat_hash_set.h"
#include "common/base/error.h"
#include "tests/cluster/faults/report.h"
#include "tests/cluster/faults/row.h"

namespace baton::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kScale = 0.004;

Answer Answered(std::vector<int32_t> tokens, bool finished, absl::Status status) {
  Answer answer;
  answer.tokens = std::move(tokens);
  answer.status = std::move(status);
  if (finished) answer.finish = baton::v1::FINISH_REASON_LENGTH;
  return answer;
}

TEST(TallyTest, WrongIsWhateverLooksRightAndIsNot) {
  Case c;
  c.expected = {1, 2, 3};
  const absl::Status lost = MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST", "lost");
  using Verdict = Tally::Verdict;
  Tally tally;
  EXPECT_EQ(tally.Count(c, Answered({1, 2, 3}, true, absl::OkStatus())), Verdict::kRight);
  EXPECT_EQ(tally.Count(c, Answered({1, 2}, false, lost)), Verdict::kError);
  EXPECT_EQ(tally.Count(c, Answered({}, false, lost)), Verdict::kError);
  EXPECT_EQ(tally.errors(), 2);
  EXPECT_EQ(tally.wrong(), 0);
  EXPECT_EQ(tally.Count(c, Answered({1, 9, 3}, true, absl::OkStatus())), Verdict::kWrong);
  EXPECT_EQ(tally.Count(c, Answered({1, 2}, true, absl::OkStatus())), Verdict::kWrong);
  EXPECT_EQ(tally.Count(c, Answered({1, 2, 3}, false, absl::OkStatus())), Verdict::kWrong);
  EXPECT_EQ(tally.Count(c, Answered({1, 2, 3, 3}, true, absl::OkStatus())), Verdict::kWrong);
  EXPECT_EQ(tally.Count(c, Answered({9}, false, lost)), Verdict::kWrong);
  EXPECT_EQ(tally.Count(c, Answered({1}, true, lost)), Verdict::kWrong);
  EXPECT_EQ(tally.Count(c, Answered({1}, false, absl::UnavailableError("?"))), Verdict::kWrong);
  EXPECT_EQ(tally.wrong(), 7);
  EXPECT_EQ(tally.requests(), 10);
  const absl::Status cancelled = MakeError(absl::StatusCode::kCancelled, "CANCELLED", "cancelled");
  EXPECT_EQ(tally.Count(c, Answered({1}, false, cancelled), true), Verdict::kCancelled);
  EXPECT_EQ(tally.Count(c, Answered({2}, false, cancelled), true), Verdict::kWrong);
}

TEST(ReportTest, RowsAreReplacedOneByOneAndTheRestStays) {
  const std::vector<std::string> order = {"a", "b", "c"};
  std::string text = Merged("# Title\n\n", order, {{"c", "| `c` | stale |"}}, "a machine");
  text = Merged(text + "\nAfter.\n", order, {{"b", "| `b` | x |"}, {"c", "| `c` | new |"}}, "m");
  EXPECT_THAT(text, HasSubstr("# Title\n"));
  EXPECT_THAT(text, HasSubstr("| `b` | x |\n| `c` | new |\n"));
  EXPECT_THAT(text, Not(HasSubstr("stale")));
  EXPECT_THAT(text, HasSubstr("\nAfter.\n"));
}

TEST(ReportTest, ARowThatDoesNotHoldSaysWhy) {
  RowResult result;
  result.name = "x";
  EXPECT_THAT(ToTableLine(result, "today"), HasSubstr("| holds |"));
  result.failures = {"a | b"};
  EXPECT_THAT(ToTableLine(result, "today"), HasSubstr("**does not hold**: a / b"));
}

// Rows whose errors only failover can spare the clients; their answers and blocks are judged.
const absl::flat_hash_set<std::string>& AwaitFailover() {
  static const auto* const rows =
      new absl::flat_hash_set<std::string>{"kill_prefill", "kill_decode"};
  return *rows;
}

class FaultRow : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { oracle_ = new Oracle("models/demo", {.thread_count = 1}); }
  static void TearDownTestSuite() {
    delete oracle_;
    oracle_ = nullptr;
  }
  static Oracle* oracle_;
};
Oracle* FaultRow::oracle_ = nullptr;

TEST_P(FaultRow, Holds) {
  CampaignOptions options;
  options.scale = kScale;
  options.seed = std::random_device()();
  options.judge_times = false;
  options.judge_errors = !AwaitFailover().contains(GetParam());
  const std::vector<Row> all = AllRows();
  const auto row =
      std::find_if(all.begin(), all.end(), [](const Row& r) { return r.name == GetParam(); });
  ASSERT_NE(row, all.end());
  const RowResult result = RunRow(*row, options, *oracle_);
  SCOPED_TRACE("fault_campaign --rows " + row->name + " --seed " + std::to_string(options.seed));
  EXPECT_GT(result.count, 0);
  EXPECT_TRUE(result.passed()) << ToTableLine(result, "");
  RecordProperty("row", ToTableLine(result, ""));
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Row& row : AllRows()) names.push_back(row.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, FaultRow, ::testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace baton::testing
