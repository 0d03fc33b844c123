#include "tests/cluster/faults/worker_face.h"

#include <grpcpp/grpcpp.h>

#include "absl/time/clock.h"
#include "common/base/rpc/grpc_status.h"

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

}  // namespace baton::testing
