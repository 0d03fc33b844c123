// One Generate request: its attempts, the pauses between them, and the answer as it grows. Both
// kinds of stream read from it.
#ifndef BATON_CLIENT_CPP_STREAM_CALL_H_
#define BATON_CLIENT_CPP_STREAM_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.pb.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "client/cpp/retries.h"

namespace baton::client {

// The owner of a stream holds the connection, too, and destroys it last: the last channel stops
// gRPC's callback threads, which one of them cannot do.
//
// Built on gRPC's callback API, which cancels a call even before there is a connection. Attempts
// and timers share the call until they have ended. Cancel() may be called by any thread; between
// Read() and its `done` nothing else may.
class StreamCall : public std::enable_shared_from_this<StreamCall> {
 public:
  using Done = std::function<void(std::optional<Delta>)>;

  StreamCall(std::shared_ptr<const Connection> connection, const GenerateRequest& request,
             const CallOptions& call);

  // Sends the request. Call once; then Read() until it reports the end, since gRPC keeps the call
  // until its stream has been read.
  void Start();
  // Calls `done` once, on a thread of gRPC: with the next delta, or with nullopt when the request
  // has ended. Call it only when the last one is done, and not after the end.
  void Read(Done done);
  void Cancel();

  const absl::Status& status() const { return status_; }
  const Completion& completion() const { return completion_; }

 private:
  class Attempt;

  // Makes an attempt; false if the call is cancelled.
  bool Begin();
  bool cancelled();
  void OnMessage(const v1::GenerateResponse& response);
  void OnAttemptEnd(const grpc::Status& status);
  void End(absl::Status status);

  std::shared_ptr<const Connection> connection_;  // null after the end
  const v1::GenerateRequest request_;
  const std::unique_ptr<Timer> timer_;
  // Used by one thread at a time: the one that calls Read(), then gRPC's.
  Retries retries_;
  Attempt* attempt_ = nullptr;  // owns itself; held until a read has failed
  bool begun_ = false;          // a message has arrived
  Done done_;
  absl::Status broken_;  // what the router sent wrong
  absl::Status status_;
  Completion completion_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);  // of the last attempt
};

}  // namespace baton::client

#endif  // BATON_CLIENT_CPP_STREAM_CALL_H_
