#include "tests/cluster/faults/worker_face.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/testing/http_client.h"

namespace baton::testing {

absl::StatusOr<WorkerFace> WorkerFace::Of(const std::shared_ptr<grpc::Channel>& channel,
                                          const std::string& address) {
  const auto stub = internal::v1::WorkerService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  context.set_wait_for_ready(true);
  internal::v1::WatchRequest request;
  request.set_watcher("fault campaign");
  auto reader = stub->Watch(&context, request);
  internal::v1::WatchResponse first;
  if (!reader->Read(&first) || !first.has_card()) return FromGrpcStatus(reader->Finish());
  WorkerFace face;
  face.address_ = address;
  face.card_ = first.card();
  context.TryCancel();
  while (reader->Read(&first)) {
  }
  (void)reader->Finish();  // cancelled, by us
  return face;
}

double MetricSum(const std::string& metrics_address, const std::string& name,
                 const std::string& label) {
  const std::string text = HttpGet(metrics_address, "/metrics");
  double sum = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, name + "{") || !absl::StrContains(line, label)) continue;
    double value = 0;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) sum += value;
  }
  return sum;
}

}  // namespace baton::testing
