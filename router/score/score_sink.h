// Where the results of a scoring call go.
#ifndef BATON_ROUTER_SCORE_SCORE_SINK_H_
#define BATON_ROUTER_SCORE_SCORE_SINK_H_

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

// Calls come one at a time, under the lock of the ScoreCall: quick, and not back into it.
class ScoreSink {
 public:
  virtual void Result(v1::ItemScore item) = 0;
  // Exactly one of these, last.
  virtual void Finish(const v1::ScoreUsage& usage) = 0;
  virtual void Fail(const absl::Status& error) = 0;

 protected:
  ~ScoreSink() = default;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_SCORE_SINK_H_
