// The fault table of docs/results/faults.md: every row against a cluster of real processes.
//
//   fault_campaign --scale 0.05                            every row at a twentieth of its volume
//   fault_campaign --rows kill_prefill,kill_decode         two of them, whole
//   fault_campaign --out docs/results/faults.md --rows ...  and into the table; other rows stay
//   fault_campaign --rows partition --piece 3/10 --pieces-dir DIR    a tenth of it; the table gets
//                                                          the sum of the pieces that DIR has
//
// Exits 1 if a row does not hold. Equal seeds inject equal faults.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/cluster/faults/report.h"
#include "tests/cluster/faults/row.h"

int main(int argc, char** argv) {
  using namespace baton::testing;
  CLI::App app("Runs rows of the fault table against a cluster of real processes");
  CampaignOptions options;
  std::vector<std::string> wanted;
  std::string out, piece, pieces_dir;
  bool list = false;
  app.add_option("--scale", options.scale, "share of each row's volume")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--rows", wanted, "name,name,…; all if absent")->delimiter(',');
  app.add_option("--out", out, "merge the results into the table of this file");
  app.add_option("--piece", piece, "K/N: the K-th of N parts of each row's volume");
  app.add_option("--pieces-dir", pieces_dir, "where the results of pieces are, one file each");
  app.add_option("--model", options.model_dir)->capture_default_str();
  app.add_option("--worker-flags", options.worker_flags,
                 "of all workers, e.g. --worker-flags=--kv-transport,shm")
      ->delimiter(',');
  app.add_option("--bin-dir", options.bin_dir, "of the product's binaries; default: found");
  app.add_flag("--list", list, "print the rows' names");
  CLI11_PARSE(app, argc, argv);

  const std::vector<Row> all = AllRows();
  if (list) {
    for (const Row& row : all) std::cout << row.name << "  " << row.fault << "\n";
    return 0;
  }
  std::vector<Row> rows;
  for (const Row& row : all) {
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), row.name) != wanted.end()) {
      rows.push_back(row);
    }
  }
  if (rows.size() < std::max<size_t>(1, wanted.size())) {
    std::cerr << "--rows names a row that is not there; --list prints all\n";
    return 1;
  }
  if (piece.empty() != pieces_dir.empty()) {
    std::cerr << "--piece and --pieces-dir go together\n";
    return 1;
  }
  if (!piece.empty()) {
    const absl::StatusOr<Piece> parsed = ParsePiece(piece);
    if (!parsed.ok()) {
      std::cerr << parsed.status() << "\n";
      return 1;
    }
    options.piece = *parsed;
  }
  std::cout << "seed " << options.seed << ", scale " << options.scale << std::endl;
  Oracle oracle(options.model_dir, {.thread_count = 1});
  bool failed = false;
  for (const Row& row : rows) {
    RowResult result = RunRow(row, options, oracle);
    std::cout << ToTableLine(result, absl::FormatDuration(result.wall)) << std::endl;
    failed = failed || !result.passed();
    absl::StatusOr<int> pieces = 1;
    if (!pieces_dir.empty()) {
      absl::Status kept = SavePiece(pieces_dir, options.piece, result);
      result = NotRun(row);
      pieces = kept.ok() ? LoadPieces(pieces_dir, options.piece.of, &result) : kept;
    }
    // After each row: a long run that is cut short keeps what it has.
    absl::Status written = pieces.status();
    if (written.ok() && !out.empty()) {
      written = MergeIntoReport(out, all, result, RunText(result, options, *pieces));
    }
    if (!written.ok()) {
      std::cerr << written << "\n";
      return 1;
    }
  }
  return failed ? 1 : 0;
}
