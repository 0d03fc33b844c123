#include "tests/cluster/faults/row_result.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace baton::testing {
namespace {

constexpr int kMaxPieces = 1000;
constexpr char kMade[] = "fault campaign piece 1";  // the format and its version

std::string PieceFile(const std::string& directory, const std::string& row, const Piece& piece) {
  return absl::StrCat(directory, "/", row, ".", piece.number, "-of-", piece.of);
}

// Fields are parted by tabs, lines by newlines: neither may be in a value.
std::string Value(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\t", " "}, {"\n", " "}});
}

// One line of a piece's file. False if it is none.
bool TakeLine(const std::vector<std::string>& fields, RowResult* result) {
  int64_t n = 0;
  if (fields.size() == 2 && fields[0] == "failure") {
    result->failures.push_back(fields[1]);
    return true;
  }
  if (fields.size() == 6 && fields[0] == "measured") {
    Measured m;
    int of = 0;
    if (!absl::SimpleAtoi(fields[2], &of) || of < 0 || of > 2 ||
        !absl::SimpleAtod(fields[3], &m.value) || !absl::SimpleAtoi(fields[4], &m.digits)) {
      return false;
    }
    m.what = fields[1];
    m.of = static_cast<Measured::Of>(of);
    m.unit = fields[5];
    result->measured.push_back(std::move(m));
    return true;
  }
  if (fields.size() == 3 && fields[0] == "errors" && absl::SimpleAtoi(fields[2], &n)) {
    result->errors_by_reason[fields[1]] += n;
    return true;
  }
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[1], &n)) return false;
  if (fields[0] == "worst_free_us" || fields[0] == "wall_us") {
    (fields[0] == "wall_us" ? result->wall : result->worst_free) = absl::Microseconds(n);
    return true;
  }
  const std::map<std::string, int64_t*> numbers = {{"count", &result->count},
                                                   {"requests", &result->requests},
                                                   {"client_errors", &result->client_errors},
                                                   {"wrong", &result->wrong},
                                                   {"leaked_blocks", &result->leaked_blocks}};
  const auto found = numbers.find(fields[0]);
  if (found == numbers.end()) return false;
  *found->second = n;
  return true;
}

}  // namespace

std::string RowResult::MeasuredText() const {
  std::vector<std::string> parts;
  for (const Measured& m : measured) {
    parts.push_back(absl::StrFormat("%s %.*f%s", m.what, m.digits, m.value, m.unit));
  }
  std::string errors;
  for (const auto& [reason, n] : errors_by_reason) {
    absl::StrAppend(&errors, errors.empty() ? "errors " : ", ", reason, " ", n);
  }
  if (!errors.empty()) parts.push_back(std::move(errors));
  return absl::StrJoin(parts, ", ");
}

void RowResult::Add(const RowResult& piece) {
  count += piece.count;
  requests += piece.requests;
  client_errors += piece.client_errors;
  wrong += piece.wrong;
  leaked_blocks += piece.leaked_blocks;
  worst_free = std::max(worst_free, piece.worst_free);
  wall += piece.wall;
  failures.insert(failures.end(), piece.failures.begin(), piece.failures.end());
  for (const auto& [reason, n] : piece.errors_by_reason) errors_by_reason[reason] += n;
  for (const Measured& m : piece.measured) {
    const auto mine = std::find_if(measured.begin(), measured.end(),
                                   [&](const Measured& other) { return other.what == m.what; });
    if (mine == measured.end()) {
      measured.push_back(m);
    } else if (m.of == Measured::Of::kAll) {
      mine->value += m.value;
    } else if (m.of == Measured::Of::kLargest) {
      mine->value = std::max(mine->value, m.value);
    } else {
      mine->value = std::min(mine->value, m.value);
    }
  }
}

absl::StatusOr<Piece> ParsePiece(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  Piece piece;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &piece.number) ||
      !absl::SimpleAtoi(parts[1], &piece.of) || piece.number < 1 || piece.number > piece.of ||
      piece.of > kMaxPieces) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no piece: expected K/N, 1 <= K <= N <= ", kMaxPieces));
  }
  return piece;
}

absl::Status SavePiece(const std::string& directory, const Piece& piece, const RowResult& result) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  const std::string path = PieceFile(directory, result.name, piece);
  std::ofstream file(path, std::ios::trunc);
  file << kMade << "\ncount\t" << result.count << "\nrequests\t" << result.requests
       << "\nclient_errors\t" << result.client_errors << "\nwrong\t" << result.wrong
       << "\nleaked_blocks\t" << result.leaked_blocks << "\nworst_free_us\t"
       << absl::ToInt64Microseconds(result.worst_free) << "\nwall_us\t"
       << absl::ToInt64Microseconds(result.wall) << "\n";
  for (const Measured& m : result.measured) {
    file << absl::StrFormat("measured\t%s\t%d\t%.17g\t%d\t%s\n", Value(m.what),
                            static_cast<int>(m.of), m.value, m.digits, Value(m.unit));
  }
  for (const auto& [reason, n] : result.errors_by_reason) {
    file << "errors\t" << Value(reason) << "\t" << n << "\n";
  }
  for (const std::string& failure : result.failures) file << "failure\t" << Value(failure) << "\n";
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::StatusOr<int> LoadPieces(const std::string& directory, int of, RowResult* row) {
  int found = 0;
  for (int number = 1; number <= of; ++number) {
    const std::string path = PieceFile(directory, row->name, {number, of});
    std::ifstream file(path);
    if (!file) continue;
    RowResult piece;
    std::string line;
    if (!std::getline(file, line) || line != kMade) {
      return absl::DataLossError(absl::StrCat(path, " is not a piece's result"));
    }
    while (std::getline(file, line)) {
      if (!TakeLine(absl::StrSplit(line, '\t'), &piece)) {
        return absl::DataLossError(absl::StrCat(path, ": a line that is none: ", line));
      }
    }
    row->Add(piece);
    ++found;
  }
  return found;
}

}  // namespace baton::testing
