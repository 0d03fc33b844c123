// How often a draft of some kind is the next token that is drawn, learned from what is drawn.
//
// A cell is a kind of draft. A drafter without a model has a cell for each kind of match: how many
// tokens agree, and what other matches of a similar length say (AcceptanceCell). A model that
// drafts has one for each range of the probability that it gives its draft (ConfidenceCell). A
// worker has one table, which all its sequences teach. Each sequence also keeps its own record in
// the same cells, which counts more the more it has seen. Both forget exponentially, so they follow
// a change of traffic, or of the text.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_DRAFTS_ACCEPTANCE_TABLE_H_
#define BATON_DECODE_WORKER_DRAFTS_ACCEPTANCE_TABLE_H_

#include <vector>

namespace baton::decode_worker {

// What the other matches at least half as long as the longest one say of the next token.
enum class Agreement {
  kAlone,      // there are none
  kUnanimous,  // all the same
  kMajority,   // half of them or more the same
  kMinority,   // most of them another
  // No match: the text behind a long match that has ended, as it goes on after the token that
  // differed. What the length counts has been drawn since.
  kResumed,
};
inline constexpr int kAgreements = 5;
inline constexpr int kLengthBuckets = 7;  // 0, 1, 2, 3 to 4, 5 to 8, 9 to 16, 17 and more tokens
inline constexpr int kAcceptanceCells = kLengthBuckets * kAgreements;

// From 0 to kAcceptanceCells - 1. REQUIRES: length >= 0.
int AcceptanceCell(int length, Agreement agreement);
// What each of the cells says before anything is learned.
std::vector<float> MatchesBeforeLearning();

// The cells of a model's drafts: ranges of probabilities, and one for all of them together, which
// says how likely the next draft is before it is made.
inline constexpr int kAnyConfidence = 10;
// From 0 to kAnyConfidence - 1. `probability`: of the draft, as the model that drafts says; it may
// be any number.
int ConfidenceCell(float probability);
std::vector<float> ConfidencesBeforeLearning();

class AcceptanceTable {
 public:
  // `before_learning`: the probability of each cell, as if it had been observed a few times.
  explicit AcceptanceTable(const std::vector<float>& before_learning = MatchesBeforeLearning());
  void Record(int cell, bool drawn);
  float Probability(int cell) const { return cells_[cell].drawn / cells_[cell].total; }

 private:
  struct Cell {
    float drawn = 0;
    float total = 0;
  };
  std::vector<Cell> cells_;
};

class SequenceAcceptance {
 public:
  void Record(int cell, bool drawn);
  // The record of this sequence, with the table's probability as if it had been observed a few
  // times.
  float Probability(int cell, const AcceptanceTable& table) const;

 private:
  struct Cell {
    float drawn = 0;
    float total = 0;
  };
  std::vector<Cell> cells_;  // as many as were recorded
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFTS_ACCEPTANCE_TABLE_H_
