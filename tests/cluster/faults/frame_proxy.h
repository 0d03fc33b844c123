// Stands between a decode and a prefill worker as a gRPC server and client, and lets a fault have
// each message of a Prefill stream before it goes on. All other calls pass unchanged.
#ifndef BATON_TESTS_CLUSTER_FAULTS_FRAME_PROXY_H_
#define BATON_TESTS_CLUSTER_FAULTS_FRAME_PROXY_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/rpc/channel.h"

namespace baton::testing {

// What happens to the frames of one stream. Called by one thread at a time.
class FrameFault {
 public:
  virtual ~FrameFault() = default;
  // Serialized frames to send on in place of `frame`, now.
  virtual std::vector<std::string> OnFrame(std::string frame) = 0;
  // The same at the end of a stream that ended in order.
  virtual std::vector<std::string> OnEnd() = 0;
};

// Thread-safe.
class FrameProxy final : public grpc::CallbackGenericService {
 public:
  // The fault of the stream for a request with this id; null: none. From any gRPC thread.
  using MakeFault = std::function<std::unique_ptr<FrameFault>(const std::string& request_id)>;

  // Listens on a free port of loopback, in front of the worker at `target`, which it calls with
  // `security`.
  static absl::StatusOr<std::unique_ptr<FrameProxy>> Start(const std::string& target,
                                                           const ChannelSecurity& security);
  ~FrameProxy() override;

  const std::string& address() const { return address_; }
  void SetFaults(MakeFault make_fault);

 private:
  class Bridge;
  FrameProxy(const std::string& target, const ChannelSecurity& security);
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
  std::unique_ptr<FrameFault> FaultFor(const grpc::ByteBuffer& request);

  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  MakeFault make_fault_ ABSL_GUARDED_BY(mutex_);
  int open_bridges_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_FRAME_PROXY_H_
