// The fault table of docs/results/faults.md: written row by row, so that long rows can run alone.
#ifndef BATON_TESTS_CLUSTER_FAULTS_REPORT_H_
#define BATON_TESTS_CLUSTER_FAULTS_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/cluster/faults/row.h"

namespace baton::testing {

// One line of Markdown. `run`: when and how it was run.
std::string ToTableLine(const RowResult& result, const std::string& run);

// When and how a row was run: "2026-11-21, scale 1, seed 1, 12 of 17 pieces, 40m". `pieces`: how
// many the result has of options.piece.of.
std::string RunText(const RowResult& result, const CampaignOptions& options, int pieces);

// Replaces the line of the result's row between the two marks of the file, and keeps the rest; rows
// stand in the order of `all`. A file without marks, or none, gets a table at its end. Campaigns
// that run at the same time may share a file. UNAVAILABLE if the file cannot be written.
absl::Status MergeIntoReport(const std::string& path, const std::vector<Row>& all,
                             const RowResult& result, const std::string& run);

// `text` with the lines replaced: what MergeIntoReport writes.
std::string Merged(const std::string& text, const std::vector<std::string>& order,
                   const std::vector<std::pair<std::string, std::string>>& lines,
                   const std::string& machine);

// "2 cores of …", from the system.
std::string MachineDescription();

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_REPORT_H_
