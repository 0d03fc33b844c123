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

// A counter of a process' /metrics, all its series with `label` (e.g. `code="CANCELLED"`; empty:
// all) added up; nothing if it does not answer or does not export it.
double MetricSum(const std::string& metrics_address, const std::string& name,
                 const std::string& label = "");

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_WORKER_FACE_H_
