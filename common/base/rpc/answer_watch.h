// Ends unary calls of a server whose client does not read the answer: each holds memory, and gRPC
// itself waits for its client without a limit.
#ifndef BATON_COMMON_BASE_RPC_ANSWER_WATCH_H_
#define BATON_COMMON_BASE_RPC_ANSWER_WATCH_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <memory>
#include <thread>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton {

// Ends a server's call with the error at once, past all that its client has not read. Any thread
// may call it while it has a reference to the call, or while gRPC still needs the call's context.
// It does not call back.
void CutCall(grpc_call* call, const absl::Status& why);

// One thread looks at all answers under way. Must outlive the server. Thread-safe.
class AnswerWatch {
 public:
  // An answer of which the client has taken nothing for `limit` (StallWatch) ends with
  // READER_STALLED, and `on_stalled` is called.
  AnswerWatch(absl::Duration limit, const Clock& clock, std::function<void()> on_stalled);
  ~AnswerWatch();

  // Makes the factory that the server's builder takes.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeFactory();

 private:
  class Answer;
  class Factory;

  void Add(Answer* answer);
  void Remove(Answer* answer);
  void Run();
  void Look();

  const absl::Duration limit_;
  const Clock& clock_;
  const std::function<void()> on_stalled_;
  absl::Mutex mutex_;
  std::unordered_set<Answer*> answers_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_ANSWER_WATCH_H_
