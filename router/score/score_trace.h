// The spans of one scoring call in the router: the call itself, the stages before its first batch,
// and one span for each batch. docs/tracing.md lists them.
#ifndef BATON_ROUTER_SCORE_SCORE_TRACE_H_
#define BATON_ROUTER_SCORE_SCORE_TRACE_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/base/trace_context.h"
#include "common/tracing/tracer.h"
#include "router/routing/route.h"

namespace baton::router {

// As RequestTrace: a trace that is not sampled only knows what to pass on. Unsynchronized; times
// are of the tracer's clock.
class ScoreTrace {
 public:
  // `caller`: the trace that the caller is in. `tracer`: null if nothing is traced.
  ScoreTrace(tracing::Tracer* tracer, const TraceContext& caller, const std::string& model,
             absl::Duration received);

  // For log lines, and for calls that begin no span.
  const TraceContext& context() const { return context_; }

  void Started(const std::string& request_id, const std::string& tenant);
  // A thread takes the prefix: the wait for admission is over.
  void Admitted(absl::Duration now);
  void Tokenized(int prefix_tokens, absl::Duration now);
  // A batch goes to a prefill worker. Returns what its call has to carry.
  TraceContext Opened(int stream, const Route& route, int items, absl::Duration now);
  void BatchLost(int stream, const absl::Status& error, absl::Duration now);
  void BatchDone(int stream, absl::Duration now);
  // Items of a lost batch wait for another worker.
  void Retried(const std::string& reason, absl::Duration now);
  void FirstResult(absl::Duration now);
  // The call has failed. Before Ended.
  void Failed(const absl::Status& error, absl::Duration now);
  // The answer goes out next. Exports the spans.
  void Ended(const v1::ScoreUsage& usage, absl::Duration now);

 private:
  TraceContext context_;
  std::unique_ptr<tracing::RequestSpans> spans_;  // null: not sampled
  const absl::Duration received_;
  absl::Duration stage_begin_;                           // of the stage that is under way
  std::map<int, tracing::RequestSpans::Index> streams_;  // that are open
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_SCORE_TRACE_H_
