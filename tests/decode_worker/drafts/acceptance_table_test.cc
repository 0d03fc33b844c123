#include "decode_worker/drafts/acceptance_table.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>
#include <utility>

#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

TEST(AcceptanceTableTest, CellsAreByLengthAndAgreement) {
  std::set<int> cells;
  for (int agreement = 0; agreement < kAgreements; ++agreement) {
    for (const auto& [first, last] :
         {std::pair{0, 0}, {1, 1}, {2, 2}, {3, 4}, {5, 8}, {9, 16}, {17, 1 << 30}}) {
      const int cell = AcceptanceCell(first, static_cast<Agreement>(agreement));
      EXPECT_EQ(cell, AcceptanceCell(last, static_cast<Agreement>(agreement))) << first;
      EXPECT_GE(cell, 0);
      EXPECT_LT(cell, kAcceptanceCells);
      cells.insert(cell);
    }
  }
  EXPECT_EQ(cells.size(), static_cast<size_t>(kAcceptanceCells)) << "no two kinds share a cell";
}

TEST(AcceptanceTableTest, StartsSensibly) {
  const AcceptanceTable table;
  const auto start = [&](int length, Agreement agreement) {
    return table.Probability(AcceptanceCell(length, agreement));
  };
  for (const int length : {1, 2, 4, 8, 16, 32}) {
    for (int agreement = 0; agreement < kAgreements; ++agreement) {
      EXPECT_GT(start(length, static_cast<Agreement>(agreement)), 0);
      EXPECT_LT(start(length, static_cast<Agreement>(agreement)), 1);
    }
    EXPECT_GT(start(length, Agreement::kUnanimous), start(length, Agreement::kAlone));
    EXPECT_GT(start(length, Agreement::kAlone), start(length, Agreement::kMajority));
    EXPECT_GT(start(length, Agreement::kMajority), start(length, Agreement::kMinority));
    EXPECT_LT(start(length, Agreement::kAlone), start(2 * length, Agreement::kAlone) + 1e-6f);
  }
}

TEST(AcceptanceTableTest, ConfidencesAreRangesOfProbabilities) {
  std::set<int> cells;
  for (float probability = 0; probability <= 1; probability += 0.001f) {
    cells.insert(ConfidenceCell(probability));
  }
  EXPECT_EQ(cells.size(), static_cast<size_t>(kAnyConfidence));
  EXPECT_EQ(ConfidenceCell(1), kAnyConfidence - 1);
  EXPECT_EQ(ConfidenceCell(7), kAnyConfidence - 1);
  EXPECT_EQ(ConfidenceCell(-1), 0);
  EXPECT_EQ(ConfidenceCell(std::numeric_limits<float>::quiet_NaN()), 0);
  EXPECT_EQ(ConfidenceCell(std::numeric_limits<float>::infinity()), kAnyConfidence - 1);
  // A model that is as sure as it should be.
  const AcceptanceTable table(ConfidencesBeforeLearning());
  EXPECT_NEAR(table.Probability(ConfidenceCell(0.92f)), 0.95, 1e-6);
  EXPECT_GT(table.Probability(kAnyConfidence), 0.5);
}

TEST(AcceptanceTableTest, LearnsAndForgets) {
  std::mt19937 random(testing::TestSeed());
  AcceptanceTable table;
  const int cell = AcceptanceCell(3, Agreement::kAlone);
  const int other = AcceptanceCell(1, Agreement::kAlone);
  const float untouched = table.Probability(other);
  for (const double rate : {0.9, 0.1, 1.0, 0.0}) {
    for (int i = 0; i < 20'000; ++i) table.Record(cell, random() < rate * 4294967296.0);
    EXPECT_NEAR(table.Probability(cell), rate, 0.05);
    EXPECT_GE(table.Probability(cell), 0);
    EXPECT_LE(table.Probability(cell), 1);
  }
  EXPECT_EQ(table.Probability(other), untouched);
}

TEST(AcceptanceTableTest, ASequenceBeginsWithTheTableAndFollowsItsOwnRecord) {
  AcceptanceTable table;
  SequenceAcceptance sequence;
  const int cell = AcceptanceCell(5, Agreement::kAlone);
  for (int i = 0; i < 1000; ++i) table.Record(cell, true);
  EXPECT_FLOAT_EQ(sequence.Probability(cell, table), table.Probability(cell));
  float before = sequence.Probability(cell, table);
  for (int i = 0; i < 6; ++i) {
    sequence.Record(cell, false);
    EXPECT_LT(sequence.Probability(cell, table), before);
    before = sequence.Probability(cell, table);
  }
  EXPECT_NEAR(before, 0.5, 0.05) << "a few observations weigh as much as the table";
  for (int i = 0; i < 300; ++i) sequence.Record(cell, false);
  EXPECT_LT(sequence.Probability(cell, table), 0.1);
  for (int i = 0; i < 300; ++i) sequence.Record(cell, true);
  EXPECT_GT(sequence.Probability(cell, table), 0.95) << "what is long past is forgotten";
}

}  // namespace
}  // namespace baton::decode_worker
