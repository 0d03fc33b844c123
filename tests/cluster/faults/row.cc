#include "tests/cluster/faults/row.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace baton::testing {
namespace {

constexpr absl::Duration kMayTakeToFree = absl::Seconds(1);
constexpr size_t kMaxFailures = 10;  // shown

std::string Milliseconds(absl::Duration d) {
  return absl::StrFormat("%.0f ms", absl::ToDoubleMilliseconds(d));
}

}  // namespace

RowRun::RowRun(RowResult* result, const CampaignOptions& options, Oracle& oracle)
    : result_(result),
      options_(options),
      oracle_(oracle),
      random_(options.seed),
      tally_(std::make_unique<Tally>()) {}

int RowRun::Count(int volume, int at_least) const {
  return std::max(at_least, static_cast<int>(std::lround(volume * options_.scale)));
}

absl::Duration RowRun::Scaled(absl::Duration volume, absl::Duration at_least) const {
  return std::max(at_least, std::min(volume, volume * options_.scale));
}

ProcessCluster* RowRun::StartCluster(ClusterOptions options) {
  options.model_dir = options_.model_dir;
  options.bin_dir = options_.bin_dir;
  options.seed = options_.seed;
  cluster_ = nullptr;
  auto cluster = ProcessCluster::Start(options);
  if (!cluster.ok()) {
    Fail(absl::StrCat("the cluster does not start: ", cluster.status().ToString()));
    return nullptr;
  }
  cluster_ = *std::move(cluster);
  return cluster_.get();
}

std::vector<Case> RowRun::Cases(int count, const CaseShape& shape) {
  return MakeCases(oracle_, count, shape, options_.seed);
}

void RowRun::AwaitFreed(absl::Time since, const std::vector<std::string>& workers, bool measured) {
  const Accounting accounting =
      AwaitFree(*cluster_, workers.empty() ? cluster_->workers() : workers, since);
  result_->leaked_blocks += accounting.leaked;
  if (measured) result_->worst_free = std::max(result_->worst_free, accounting.freed);
  if (accounting.leaked > 0) Fail(absl::StrCat("leak: ", accounting.detail));
}

void RowRun::Fail(const std::string& what) {
  if (result_->failures.size() < kMaxFailures) result_->failures.push_back(what);
  std::fprintf(stderr, "  %s: %s\n", result_->name.c_str(), what.c_str());
}

void RowRun::Measure(const std::string& what, const std::string& value) {
  result_->measured.emplace_back(what, value);
}

void RowRun::Measure(const std::string& what, absl::Duration worst) {
  Measure(what, Milliseconds(worst));
}

void RowRun::Judge(int64_t allowed_errors) {
  result_->requests += tally_->requests();
  result_->client_errors += tally_->errors();
  result_->wrong += tally_->wrong();
  for (const std::string& example : tally_->examples()) Fail(absl::StrCat("wrong: ", example));
  if (tally_->errors() > 0) Measure("errors", tally_->ErrorsByReason());
  if (options_.judge_errors && tally_->errors() > allowed_errors) {
    Fail(absl::StrCat(tally_->errors(), " client errors, at most ", allowed_errors,
                      " expected: ", tally_->ErrorsByReason()));
  }
  RequireTime(result_->worst_free <= kMayTakeToFree,
              absl::StrCat("freed after ", Milliseconds(result_->worst_free)));
  tally_ = std::make_unique<Tally>();
  if (cluster_ == nullptr) return;
  for (const std::string& crash : cluster_->Crashes()) Fail(crash);
  if (!result_->passed()) {
    cluster_->KeepLogs();
    std::fprintf(stderr, "  %s: logs are in %s\n", result_->name.c_str(),
                 cluster_->log_dir().c_str());
  }
  cluster_ = nullptr;
}

RowResult RunRow(const Row& row, const CampaignOptions& options, Oracle& oracle) {
  RowResult result;
  result.name = row.name;
  result.fault = row.fault;
  result.must_hold = row.must_hold;
  result.volume = row.volume;
  const absl::Time begin = absl::Now();
  {
    RowRun run(&result, options, oracle);
    row.run(run);
  }
  result.wall = absl::Now() - begin;
  return result;
}

std::vector<Row> AllRows() {
  std::vector<Row> all;
  for (auto part :
       {KillRows, LinkRows, FrameRows, CancelRows, LoadRows, LifecycleRows, MalformedRows}) {
    for (Row& row : part()) all.push_back(std::move(row));
  }
  return all;
}

}  // namespace baton::testing
