// Where the results of a scoring call go.
#ifndef BATON_ROUTER_SCORE_SCORE_SINK_H_
#define BATON_ROUTER_SCORE_SCORE_SINK_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

// Calls come one at a time, under the lock of the ScoreCall: they must be quick and must not call
// it. The sink lives until it calls ScoreCall::OnSinkGone, which it does after Finish or Fail.
class ScoreSink {
 public:
  virtual void Result(v1::ItemScore item) = 0;
  // Exactly one of these is called, after all results.
  virtual void Finish(const v1::ScoreUsage& usage) = 0;
  virtual void Fail(const absl::Status& error) = 0;
  // These are as in ResponseSink.
  virtual bool Stalled(absl::Duration now) { return false; }
  virtual void Abort(const absl::Status& why) {}

 protected:
  ~ScoreSink() = default;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_SCORE_SINK_H_
