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
constexpr size_t kMaxFailures = 10;          // shown
constexpr uint64_t kSeedsApart = 1'000'003;  // of pieces

std::string Milliseconds(absl::Duration d) {
  return absl::StrFormat("%.0f ms", absl::ToDoubleMilliseconds(d));
}

}  // namespace

RowRun::RowRun(RowResult* result, const CampaignOptions& options, Oracle& oracle)
    : result_(result),
      options_(options),
      oracle_(oracle),
      seed_(options.seed + static_cast<uint64_t>(options.piece.number - 1) * kSeedsApart),
      random_(seed_),
      tally_(std::make_unique<Tally>()) {}

int RowRun::Count(int volume, int at_least) const {
  const int64_t all = std::max<int64_t>(at_least, std::lround(volume * options_.scale));
  const Piece& piece = options_.piece;
  return static_cast<int>(all * piece.number / piece.of - all * (piece.number - 1) / piece.of);
}

absl::Duration RowRun::Scaled(absl::Duration volume, absl::Duration at_least) const {
  return std::max(at_least, std::min(volume, volume * options_.scale));
}

ProcessCluster* RowRun::StartCluster(ClusterOptions options) {
  options.model_dir = options_.model_dir;
  options.bin_dir = options_.bin_dir;
  options.seed = seed_;
  options.worker_flags.insert(options.worker_flags.end(), options_.worker_flags.begin(),
                              options_.worker_flags.end());
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
  return MakeCases(oracle_, count, shape, seed_);
}

void RowRun::AwaitFreed(absl::Time since, const std::vector<std::string>& workers, bool measured) {
  const Accounting accounting =
      AwaitFree(*cluster_, workers.empty() ? cluster_->workers() : workers, since);
  result_->leaked_blocks += accounting.leaked;
  if (measured) result_->worst_free = std::max(result_->worst_free, accounting.time_to_free);
  if (accounting.leaked > 0) Fail(absl::StrCat("leak: ", accounting.detail));
}

void RowRun::Fail(const std::string& what) {
  if (result_->failures.size() < kMaxFailures) result_->failures.push_back(what);
  std::fprintf(stderr, "  %s: %s\n", result_->name.c_str(), what.c_str());
}

void RowRun::Measure(const std::string& what, absl::Duration worst, int digits) {
  Measure({what, Measured::Of::kLargest, absl::ToDoubleMilliseconds(worst), digits, " ms"});
}

void RowRun::MeasureSeconds(const std::string& what, absl::Duration longest) {
  Measure({what, Measured::Of::kLargest, absl::ToDoubleSeconds(longest), 0, " s"});
}

void RowRun::MeasureCount(const std::string& what, int64_t count) {
  Measure({what, Measured::Of::kAll, static_cast<double>(count), 0, ""});
}

void RowRun::Judge(int64_t allowed_errors) {
  result_->requests += tally_->requests();
  result_->client_errors += tally_->errors();
  result_->wrong += tally_->wrong();
  for (const std::string& example : tally_->examples()) Fail(absl::StrCat("wrong: ", example));
  for (const auto& [reason, count] : tally_->reasons()) {
    result_->errors_by_reason[reason] += count;
  }
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
                 cluster_->work_dir().c_str());
  }
  cluster_ = nullptr;
}

int64_t KvBytes(RowRun& run, const Case& c) {
  const auto& layout = run.oracle().engine().kv_layout();
  const int tokens = static_cast<int>(c.prompt.size());
  return layout.NeededBytes(0, (tokens + layout.block_tokens - 1) / layout.block_tokens,
                            (tokens - 1) / layout.block_tokens);
}

RowResult NotRun(const Row& row) {
  RowResult result;
  result.name = row.name;
  result.fault = row.fault;
  result.must_hold = row.must_hold;
  result.volume = row.volume;
  return result;
}

RowResult RunRow(const Row& row, const CampaignOptions& options, Oracle& oracle) {
  RowResult result = NotRun(row);
  const absl::Time begin = absl::Now();
  {
    RowRun run(&result, options, oracle);
    row.run(run);
  }
  if (result.count == 0 && result.passed()) {
    result.failures.push_back("no fault came about; in pieces: cut it into fewer");
  }
  result.wall = absl::Now() - begin;
  return result;
}

std::vector<Row> AllRows() {
  std::vector<Row> all;
  for (auto part : {KillRows, StormRows, LinkRows, FrameRows, CancelRows, LoadRows, LifecycleRows,
                    MalformedRows}) {
    for (Row& row : part()) all.push_back(std::move(row));
  }
  return all;
}

}  // namespace baton::testing
