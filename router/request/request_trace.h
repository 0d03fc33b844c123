// The spans of one request in the router: the request itself, the stages before its first stream to
// a worker, and one span for each stream. docs/tracing.md lists them.
#ifndef BATON_ROUTER_REQUEST_REQUEST_TRACE_H_
#define BATON_ROUTER_REQUEST_REQUEST_TRACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/base/trace_context.h"
#include "common/tracing/tracer.h"
#include "router/request/attempt.h"

namespace baton::router {

// A trace that is not sampled, or not recorded here, only knows what to pass on: all other methods
// then do nothing. Unsynchronized; times are of the tracer's clock.
class RequestTrace {
 public:
  // `caller`: the trace that the caller is in. `chat`: the endpoint is one for chats. `tracer`:
  // null if nothing is traced.
  RequestTrace(tracing::Tracer* tracer, const TraceContext& caller, const std::string& model,
               bool chat, absl::Duration received);

  // For log lines, and for calls that begin no span.
  const TraceContext& context() const { return context_; }

  void Refused(const std::string& request_id) {
    if (spans_ != nullptr) SetRequestId(request_id);
  }
  void Started(const v1::GenerateRequest& request) {
    if (spans_ != nullptr) Describe(request);
  }
  // A chat's messages became the prompt before the request was started.
  void Rendered(absl::Duration begin, absl::Duration end);
  // A thread takes the prompt: the wait for admission is over.
  void Admitted(absl::Duration now);
  void Tokenized(int prompt_tokens, absl::Duration now);
  void RouteChosen(const absl::StatusOr<Route>& route, absl::string_view policy,
                   absl::Duration begin, absl::Duration now);
  // A stream opens. Returns what its call has to carry.
  TraceContext Opened(int stream, const Attempt& attempt, absl::Duration now);
  void Retried(bool begun, const std::string& reason, absl::Duration now);
  void FirstToken(absl::Duration now);
  void ChoiceEnded(v1::FinishReason reason);
  void StreamLost(int stream, const absl::Status& error, absl::Duration now);
  void StreamDone(int stream, const Attempt& attempt, absl::Duration now);
  // The request has failed. Before Ended.
  void Failed(const absl::Status& error, absl::Duration now);
  // The answer goes out next. Exports the spans.
  void Ended(const v1::Usage& usage, absl::Duration now);

 private:
  void SetRequestId(const std::string& request_id);
  void Describe(const v1::GenerateRequest& request);

  TraceContext context_;
  std::unique_ptr<tracing::RequestSpans> spans_;  // null: not sampled
  const absl::Duration received_;
  absl::Duration stage_begin_;  // of the stage that is under way
  std::string request_id_;
  std::map<int, tracing::RequestSpans::Index> streams_;  // that are open
  std::vector<std::string> finish_reasons_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_REQUEST_TRACE_H_
