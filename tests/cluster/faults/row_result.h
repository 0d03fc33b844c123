// What a row of the fault table found, whole or in pieces that ran one after another.
#ifndef BATON_TESTS_CLUSTER_FAULTS_ROW_RESULT_H_
#define BATON_TESTS_CLUSTER_FAULTS_ROW_RESULT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::testing {

struct Measured {
  // What several pieces say together.
  enum class Of { kAll, kLargest, kSmallest };  // kAll: the sum
  std::string what;
  Of of = Of::kLargest;
  double value = 0;
  int digits = 0;    // behind the point
  std::string unit;  // with the space before it, if one is wished
};

struct RowResult {
  std::string name, fault, must_hold, volume;
  int64_t count = 0;  // faults injected
  int64_t requests = 0, client_errors = 0, wrong = 0, leaked_blocks = 0;
  absl::Duration worst_free;
  std::vector<Measured> measured;
  std::map<std::string, int64_t> errors_by_reason;  // "UNAVAILABLE PREFILL_LOST": 3
  std::vector<std::string> failures;
  absl::Duration wall;
  bool passed() const { return failures.empty(); }

  // "ejected after 3074 ms, …, errors UNAVAILABLE PREFILL_LOST 2"
  std::string MeasuredText() const;
  // Takes in what another piece of the same row found.
  void Add(const RowResult& piece);
};

// Piece `number` (from 1) of `of`.
struct Piece {
  int number = 1;
  int of = 1;
};

// "3/17". INVALID_ARGUMENT unless 1 <= number <= of <= 1000.
absl::StatusOr<Piece> ParsePiece(const std::string& text);

// Writes one piece's result to `directory`, which is made if absent. What it found alone is kept:
// fault, volume and what must hold are the row's.
absl::Status SavePiece(const std::string& directory, const Piece& piece, const RowResult& result);

// All pieces of `row` that `directory` has of a cut into `of`, added up, and how many there are.
// DATA_LOSS if a file is not one that SavePiece() wrote.
absl::StatusOr<int> LoadPieces(const std::string& directory, int of, RowResult* row);

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_ROW_RESULT_H_
