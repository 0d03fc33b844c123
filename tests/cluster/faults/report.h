// The fault table of docs/reliability.md: written row by row, so that long rows can run alone.
#ifndef BATON_TESTS_CLUSTER_FAULTS_REPORT_H_
#define BATON_TESTS_CLUSTER_FAULTS_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/cluster/faults/row.h"

namespace baton::testing {

// One line of Markdown. `run`: when and how it was run.
std::string ToTableLine(const RowResult& result, const std::string& run);

// Replaces the lines of the rows that `results` has between the two marks of the file, and keeps
// the rest; rows stand in the order of `all`. A file without marks, or none, gets a table at its
// end. UNAVAILABLE if the file cannot be written.
absl::Status MergeIntoReport(const std::string& path, const std::vector<Row>& all,
                             const std::vector<RowResult>& results, const CampaignOptions& options);

// `text` with the lines replaced: what MergeIntoReport writes.
std::string Merged(const std::string& text, const std::vector<std::string>& order,
                   const std::vector<std::pair<std::string, std::string>>& lines,
                   const std::string& machine);

// "2 cores of …", from the system.
std::string MachineDescription();

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_REPORT_H_
