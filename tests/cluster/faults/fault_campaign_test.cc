// The fault table at a small scale, and the judges themselves: what they must not let pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "baton/internal/v1/prefill.pb.h"
#include "common/base/error.h"
#include "tests/cluster/faults/frame_faults.h"
#include "tests/cluster/faults/report.h"
#include "tests/cluster/faults/row.h"
#include "tests/testing/seed.h"

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

// A short prompt's KV crosses in one chunk where all layers are there at once.
TEST(FrameFaultTest, EveryKindSpoilsATransferOfOneChunk) {
  Frames whole;
  const auto add = [&](auto fill) {
    internal::v1::PrefillFrame frame;
    frame.set_transfer_id(7);
    frame.set_epoch(9);
    fill(frame);
    whole.push_back(frame.SerializeAsString());
  };
  add([](auto& frame) { frame.mutable_accepted()->set_block_count(1); });
  add([](auto& frame) {
    frame.mutable_kv_chunk()->set_block_count(1);
    frame.set_payload("keys and values of one block");
  });
  add([](auto& frame) { frame.mutable_first_token()->set_token_id(3); });
  add([](auto& frame) { frame.mutable_commit()->set_kv_chunk_count(1); });
  for (const FrameFaultKind& kind : FrameFaultKinds()) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::unique_ptr<FrameFault> fault = MakeFrameFault(kind, seed);
      Frames spoilt;
      for (const std::string& frame : whole) {
        for (std::string& sent : fault->OnFrame(frame)) spoilt.push_back(std::move(sent));
      }
      EXPECT_FALSE(spoilt.empty()) << kind.name;
      if (kind.must_be_refused) {
        EXPECT_NE(spoilt, whole) << kind.name << ", seed " << seed;
      }
    }
  }
}

TEST(RowResultTest, PiecesAddUpToTheWholeRow) {
  const std::string directory = ::testing::TempDir() + "/pieces";
  std::filesystem::remove_all(directory);
  RowResult piece;
  piece.name = "x";
  piece.count = 4;
  piece.requests = 10;
  piece.client_errors = 1;
  piece.worst_free = absl::Milliseconds(7);
  piece.wall = absl::Seconds(3);
  piece.errors_by_reason = {{"UNAVAILABLE A", 1}};
  piece.measured = {{"n", Measured::Of::kAll, 2, 0, ""},
                    {"slowest", Measured::Of::kLargest, 8.25, 1, " ms"},
                    {"share", Measured::Of::kSmallest, 99, 0, " %"}};
  ASSERT_TRUE(SavePiece(directory, {1, 3}, piece).ok());
  piece.count = 6;
  piece.wrong = 1;
  piece.worst_free = absl::Milliseconds(5);
  piece.measured[1].value = 9.75;
  piece.measured[2].value = 90;
  piece.failures = {"wrong:\tall\nof it"};
  ASSERT_TRUE(SavePiece(directory, {3, 3}, piece).ok());
  ASSERT_TRUE(SavePiece(directory, {2, 4}, piece).ok());  // of another cut: not for this sum

  RowResult whole;
  whole.name = "x";
  const absl::StatusOr<int> pieces = LoadPieces(directory, 3, &whole);
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  EXPECT_EQ(*pieces, 2);
  EXPECT_EQ(whole.count, 10);
  EXPECT_EQ(whole.requests, 20);
  EXPECT_EQ(whole.client_errors, 2);
  EXPECT_EQ(whole.wrong, 1);
  EXPECT_EQ(whole.worst_free, absl::Milliseconds(7));
  EXPECT_EQ(whole.MeasuredText(), "n 4, slowest 9.8 ms, share 90 %, errors UNAVAILABLE A 2");
  EXPECT_THAT(whole.failures, ::testing::ElementsAre("wrong: all of it"));
  CampaignOptions options;
  options.piece = {3, 3};
  EXPECT_THAT(RunText(whole, options, *pieces), HasSubstr("**2 of 3 pieces**, 6s"));

  std::ofstream(directory + "/x.2-of-3") << "something else\n";
  EXPECT_TRUE(absl::IsDataLoss(LoadPieces(directory, 3, &whole).status()));
}

TEST(RowResultTest, APieceIsOneOfSeveral) {
  EXPECT_EQ(ParsePiece("3/17")->number, 3);
  EXPECT_EQ(ParsePiece("3/17")->of, 17);
  for (const char* text : {"", "3", "0/2", "3/2", "1/1001", "a/2", "1/2/3", "-1/2"}) {
    EXPECT_FALSE(ParsePiece(text).ok()) << text;
  }
}

// Every fault of a row falls to one piece, however it is cut.
TEST(RowResultTest, PiecesShareTheWholeVolume) {
  Oracle oracle("models/demo", {.thread_count = 1});
  for (const int volume : {1, 5, 50, 100}) {
    for (const int of : {1, 3, 7}) {
      int all = 0;
      for (int number = 1; number <= of; ++number) {
        CampaignOptions options;
        options.piece = {number, of};
        RowResult result;
        all += RowRun(&result, options, oracle).Count(volume);
      }
      EXPECT_EQ(all, volume) << of;
    }
  }
}

void ExpectHolds(const std::string& name, std::vector<std::string> worker_flags, Oracle& oracle) {
  CampaignOptions options;
  options.worker_flags = std::move(worker_flags);
  options.scale = kScale;
  options.seed = TestSeed();
  options.judge_times = false;
  const std::vector<Row> all = AllRows();
  const auto row =
      std::find_if(all.begin(), all.end(), [&name](const Row& r) { return r.name == name; });
  ASSERT_NE(row, all.end());
  const RowResult result = RunRow(*row, options, oracle);
  SCOPED_TRACE("fault_campaign --rows " + row->name + " --seed " + std::to_string(options.seed));
  EXPECT_GT(result.count, 0);
  EXPECT_TRUE(result.passed()) << ToTableLine(result, "");
  ::testing::Test::RecordProperty("row", ToTableLine(result, ""));
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

TEST_P(FaultRow, Holds) { ExpectHolds(GetParam(), {}, *oracle_); }

// KV of transfers that are struck comes through shared memory.
class SharedMemoryRow : public FaultRow {};
TEST_P(SharedMemoryRow, Holds) { ExpectHolds(GetParam(), {"--kv-transport", "shm"}, *oracle_); }
INSTANTIATE_TEST_SUITE_P(Table, SharedMemoryRow,
                         ::testing::Values("kill_decode", "cancel_first_token", "pool_exhausted"),
                         [](const auto& info) { return info.param; });

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Row& row : AllRows()) {
    if (row.in_tests) names.push_back(row.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, FaultRow, ::testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace baton::testing
