#include "decode_worker/drafts/acceptance_table.h"

#include <algorithm>
#include <bit>

namespace baton::decode_worker {

namespace {

// Before anything is learned: by length, for a match alone (none has no token).
constexpr std::array<float, kLengthBuckets> kStart = {0, 0.15f, 0.3f, 0.5f, 0.7f, 0.85f, 0.92f};
// The weight of that, in observations; how many observations are remembered, by the table and by a
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

AcceptanceTable::AcceptanceTable() {
  for (int agreement = 0; agreement < kAgreements; ++agreement) {
    for (int bucket = 0; bucket < kLengthBuckets; ++bucket) {
      cells_[agreement * kLengthBuckets + bucket] = {
          .drawn = kStartWeight * Start(bucket, static_cast<Agreement>(agreement)),
          .total = kStartWeight};
    }
  }
}

void AcceptanceTable::Record(int cell, bool drawn) {
  Cell& counts = cells_[cell];
  counts.drawn += (drawn ? 1 : 0) - kTableForgets * counts.drawn;
  counts.total += 1 - kTableForgets * counts.total;
}

void SequenceAcceptance::Record(int cell, bool drawn) {
  Cell& counts = cells_[cell];
  counts.drawn += (drawn ? 1 : 0) - kSequenceForgets * counts.drawn;
  counts.total += 1 - kSequenceForgets * counts.total;
}

float SequenceAcceptance::Probability(int cell, const AcceptanceTable& table) const {
  const Cell& own = cells_[cell];
  return (own.drawn + kTableWeight * table.Probability(cell)) / (own.total + kTableWeight);
}

}  // namespace baton::decode_worker
