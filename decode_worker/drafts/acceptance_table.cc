#include "decode_worker/drafts/acceptance_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace baton::decode_worker {

namespace {

// Before anything is learned: by length, for a match alone (none has no token).
constexpr std::array<float, kLengthBuckets> kStart = {0, 0.15f, 0.3f, 0.5f, 0.7f, 0.85f, 0.92f};
// A model's drafts begin with this, whatever their probability: usual pairs of models are near it.
constexpr float kStartOfAny = 0.65f;
// The weight of these, in observations; how many observations are remembered, by the table and by a
// sequence; and the weight of the table against a sequence's record.
constexpr float kStartWeight = 16;
constexpr float kTableForgets = 1.0f / 2048;
constexpr float kSequenceForgets = 1.0f / 64;
constexpr float kTableWeight = 6;

float Start(int length_bucket, Agreement agreement) {
  const float alone = kStart[length_bucket];
  switch (agreement) {
    case Agreement::kAlone:
      return alone;
    case Agreement::kUnanimous:
      return 1 - 0.7f * (1 - alone);
    case Agreement::kMajority:
      return 0.8f * alone;
    case Agreement::kMinority:
      return 0.4f * alone;
    case Agreement::kResumed:
      return length_bucket == 0 ? 0.4f : std::max(0.75f, alone);
  }
  return 0;
}

}  // namespace

int AcceptanceCell(int length, Agreement agreement) {
  // 0, 1, 2, 3 to 4, 5 to 8, 9 to 16, 17 and more.
  const int bucket =
      length < 2 ? length : 1 + static_cast<int>(std::bit_width(static_cast<unsigned>(length - 1)));
  return static_cast<int>(agreement) * kLengthBuckets + std::min(bucket, kLengthBuckets - 1);
}

std::vector<float> MatchesBeforeLearning() {
  std::vector<float> start(kAcceptanceCells);
  for (int agreement = 0; agreement < kAgreements; ++agreement) {
    for (int bucket = 0; bucket < kLengthBuckets; ++bucket) {
      start[agreement * kLengthBuckets + bucket] = Start(bucket, static_cast<Agreement>(agreement));
    }
  }
  return start;
}

int ConfidenceCell(float probability) {
  // Written so that NaN is in the first cell.
  if (!(probability > 0)) return 0;
  return std::min(static_cast<int>(std::min(probability, 1.0f) * kAnyConfidence),
                  kAnyConfidence - 1);
}

std::vector<float> ConfidencesBeforeLearning() {
  // Both models say the same with the same confidence, until something else is learned.
  std::vector<float> start;
  for (int cell = 0; cell < kAnyConfidence; ++cell) {
    start.push_back((static_cast<float>(cell) + 0.5f) / kAnyConfidence);
  }
  start.push_back(kStartOfAny);
  return start;
}

AcceptanceTable::AcceptanceTable(const std::vector<float>& before_learning) {
  for (const float probability : before_learning) {
    cells_.push_back({.drawn = kStartWeight * probability, .total = kStartWeight});
  }
}

void AcceptanceTable::Record(int cell, bool drawn) {
  Cell& counts = cells_[cell];
  counts.drawn += (drawn ? 1 : 0) - kTableForgets * counts.drawn;
  counts.total += 1 - kTableForgets * counts.total;
}

void SequenceAcceptance::Record(int cell, bool drawn) {
  if (static_cast<size_t>(cell) >= cells_.size()) cells_.resize(static_cast<size_t>(cell) + 1);
  Cell& counts = cells_[cell];
  counts.drawn += (drawn ? 1 : 0) - kSequenceForgets * counts.drawn;
  counts.total += 1 - kSequenceForgets * counts.total;
}

float SequenceAcceptance::Probability(int cell, const AcceptanceTable& table) const {
  const Cell own = static_cast<size_t>(cell) < cells_.size() ? cells_[cell] : Cell();
  return (own.drawn + kTableWeight * table.Probability(cell)) / (own.total + kTableWeight);
}

}  // namespace baton::decode_worker
