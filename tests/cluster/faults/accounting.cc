#include "tests/cluster/faults/accounting.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/internal/v1/worker.grpc.pb.h"

namespace baton::testing {
namespace {

using internal::v1::GetBlockCountsResponse;

// Whole and free; else what is wrong with the counts.
std::string Fault(const GetBlockCountsResponse& counts) {
  const int sum = counts.free() + counts.active() + counts.cached() + counts.held();
  const bool balanced = sum == counts.total();
  const bool idle = counts.active() == 0 && counts.held() == 0 && counts.open_transfers() == 0;
  return balanced && idle ? "" : counts.ShortDebugString();
}

// The last fault seen; empty once all is free.
std::string Follow(internal::v1::WorkerService::Stub& stub, absl::Time end,
                   GetBlockCountsResponse* counts) {
  std::string fault = "no report";
  grpc::ClientContext watch_context;
  watch_context.set_deadline(absl::ToChronoTime(end));
  watch_context.set_wait_for_ready(true);
  internal::v1::WatchRequest request;
  request.set_watcher("accounting");
  auto reader = stub.Watch(&watch_context, request);
  internal::v1::WatchResponse event;
  while (!fault.empty() && reader->Read(&event)) {
    if (!event.has_load()) continue;
    if (event.load().running() != 0 || event.load().queued() != 0) {
      fault = event.load().ShortDebugString();
      continue;
    }
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(end));
    const grpc::Status status = stub.GetBlockCounts(&context, {}, counts);
    fault = status.ok() ? Fault(*counts) : status.error_message();
  }
  watch_context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (fault == "no report") absl::StrAppend(&fault, ": ", status.error_message());
  return fault;
}

}  // namespace

Accounting AwaitFree(ProcessCluster& cluster, const std::vector<std::string>& workers,
                     absl::Time since, absl::Duration limit) {
  Accounting accounting;
  const absl::Time end = absl::Now() + limit;
  for (const std::string& worker : workers) {
    const auto stub = internal::v1::WorkerService::NewStub(cluster.channel(worker));
    GetBlockCountsResponse counts;
    std::string fault;
    do {
      fault = Follow(*stub, end, &counts);
    } while (!fault.empty() && absl::Now() < end);  // a worker just restarted: again
    if (!fault.empty()) {
      const int64_t missing = int64_t{counts.total()} - counts.free() - counts.cached();
      accounting.leaked += std::max<int64_t>(1, missing);
      absl::StrAppend(&accounting.detail, worker, ": ", fault, " ");
    }
  }
  accounting.time_to_free = absl::Now() - since;
  return accounting;
}

}  // namespace baton::testing
