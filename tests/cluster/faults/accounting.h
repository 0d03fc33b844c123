// Checks that all KV blocks of a cluster come back after a fault, and how soon.
#ifndef BATON_TESTS_CLUSTER_FAULTS_ACCOUNTING_H_
#define BATON_TESTS_CLUSTER_FAULTS_ACCOUNTING_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/cluster/faults/process_cluster.h"

namespace baton::testing {

struct Accounting {
  // From `since` until the last worker reported no block in use, or until the limit.
  absl::Duration time_to_free;
  int64_t leaked = 0;  // blocks that never came back; all blocks of a worker that does not answer
  std::string detail;  // of the leak, or of a worker that does not answer
};

// Follows the reports of each of `workers` until every one has no sequence that runs or waits and
// no open transfer, and its free + cached blocks are its total. Gives up after `limit`, and counts
// as leaked what is missing.
Accounting AwaitFree(ProcessCluster& cluster, const std::vector<std::string>& workers,
                     absl::Time since, absl::Duration limit = absl::Seconds(20));

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_ACCOUNTING_H_
