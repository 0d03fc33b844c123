// One row of the fault table: what is done to a cluster how often, and what must hold meanwhile.
#ifndef BATON_TESTS_CLUSTER_FAULTS_ROW_H_
#define BATON_TESTS_CLUSTER_FAULTS_ROW_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/cluster/faults/accounting.h"
#include "tests/cluster/faults/load.h"
#include "tests/cluster/faults/process_cluster.h"
#include "tests/cluster/faults/row_result.h"

namespace baton::testing {

struct CampaignOptions {
  double scale = 1;  // share of each row's volume
  Piece piece;       // of that volume; what each fault is, and how long it lasts, stays the same
  uint64_t seed = 1;
  std::string model_dir = "models/demo";
  std::string bin_dir;                    // empty: beside this binary
  std::vector<std::string> worker_flags;  // of all workers, beside those of the row
  // Whether a time that is too long fails a row. Not in tests, which share their machine.
  bool judge_times = true;
  // Whether errors that clients see fail a row, beyond those that its fault makes unavoidable.
  bool judge_errors = true;
};

// A row that runs. What it finds goes into its result. For one thread; the tally is for any.
class RowRun {
 public:
  RowRun(RowResult* result, const CampaignOptions& options, Oracle& oracle);

  // This piece's part of the scaled volume, which is at least `at_least`.
  int Count(int volume, int at_least = 1) const;
  absl::Duration Scaled(absl::Duration volume, absl::Duration at_least) const;
  Oracle& oracle() { return oracle_; }
  std::mt19937_64& random() { return random_; }
  uint64_t seed() const { return seed_; }  // each piece has its own
  bool times_judged() const { return options_.judge_times; }
  Tally& tally() { return *tally_; }
  RowResult& result() { return *result_; }

  // Null, and the row has failed, if it does not start. Lives until the row ends.
  ProcessCluster* StartCluster(ClusterOptions options = {});
  // Cases of the campaign's seed.
  std::vector<Case> Cases(int count, const CaseShape& shape);

  void Injected() { ++result_->count; }
  // Waits until all blocks of `workers` (all: of every worker) are back, and notes how long since.
  // `measured`: whether that time counts for the row's worst.
  void AwaitFreed(absl::Time since, const std::vector<std::string>& workers = {},
                  bool measured = true);
  void Fail(const std::string& what);
  void Require(bool holds, const std::string& what) {
    if (!holds) Fail(what);
  }
  void RequireTime(bool holds, const std::string& what) { Require(holds || !times_judged(), what); }
  void Measure(const std::string& what, absl::Duration worst, int digits = 0);  // ms
  void MeasureSeconds(const std::string& what, absl::Duration longest);
  void MeasureCount(const std::string& what, int64_t count);
  void Measure(Measured measured) { result_->measured.push_back(std::move(measured)); }

  // Ends the cluster and judges: no wrong answer, no leak, all freed within a second, no crash, and
  // at most `allowed_errors` errors seen by clients.
  void Judge(int64_t allowed_errors = 0);

 private:
  RowResult* const result_;
  const CampaignOptions& options_;
  Oracle& oracle_;
  const uint64_t seed_;
  std::mt19937_64 random_;
  std::unique_ptr<Tally> tally_;
  std::unique_ptr<ProcessCluster> cluster_;
};

struct Row {
  std::string name;
  std::string fault;
  std::string volume;  // at scale 1, in words
  std::string must_hold;
  std::function<void(RowRun&)> run;
  bool in_tests = true;  // fault_campaign_test runs it, too: seconds at a small scale
};

// KV bytes that the transfer of the case's prompt has, uncached.
int64_t KvBytes(RowRun& run, const Case& c);

// In the order of the table.
std::vector<Row> AllRows();

// A result that nothing has been added to.
RowResult NotRun(const Row& row);
RowResult RunRow(const Row& row, const CampaignOptions& options, Oracle& oracle);

// Parts of AllRows(), by the file that has them.
std::vector<Row> KillRows();
std::vector<Row> StormRows();
std::vector<Row> LinkRows();
std::vector<Row> FrameRows();
std::vector<Row> CancelRows();
std::vector<Row> LoadRows();
std::vector<Row> LifecycleRows();
std::vector<Row> MalformedRows();

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_ROW_H_
