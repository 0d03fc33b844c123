// A worker process as MakeDecodeRequest of tests/testing/worker_client.h wants to see it.
#ifndef BATON_TESTS_CLUSTER_FAULTS_WORKER_FACE_H_
#define BATON_TESTS_CLUSTER_FAULTS_WORKER_FACE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "baton/internal/v1/worker.grpc.pb.h"

namespace baton::testing {

class WorkerFace {
 public:
  // Asks for the card on `channel`; `address` is what other workers are told.
  static absl::StatusOr<WorkerFace> Of(const std::shared_ptr<grpc::Channel>& channel,
                                       const std::string& address);
  const internal::v1::WorkerCard& card() const { return card_; }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  internal::v1::WorkerCard card_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_WORKER_FACE_H_
