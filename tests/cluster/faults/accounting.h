// Where every KV block of a cluster is, and how soon it came back.
#ifndef BATON_TESTS_CLUSTER_FAULTS_ACCOUNTING_H_
#define BATON_TESTS_CLUSTER_FAULTS_ACCOUNTING_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/cluster/faults/process_cluster.h"

namespace baton::testing {

struct Accounting {
  absl::Duration freed;  // from `since` until the last worker reported that all is free
  int64_t leaked = 0;    // blocks that never came back
  std::string detail;    // of the leak, or of a worker that does not answer
};

// Follows the reports of each of `workers` until none has anything running, waiting or open, and
// free + cached is its total. Gives up, and counts as leaked what is missing, after `limit`.
Accounting AwaitFree(ProcessCluster& cluster, const std::vector<std::string>& workers,
                     absl::Time since, absl::Duration limit = absl::Seconds(20));

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_ACCOUNTING_H_
