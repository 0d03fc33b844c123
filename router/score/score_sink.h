// Where the results of a call that scores or embeds items go.
#ifndef BATON_ROUTER_SCORE_SCORE_SINK_H_
#define BATON_ROUTER_SCORE_SCORE_SINK_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

struct ItemResult {
  v1::ItemScore score;
  // Of a call that embeds: the model's vector as it is computed, which is not normalized.
  std::vector<float> embedding;
};

// Calls come one at a time, under the lock of the ScoreCall: they must be quick and must not call
// it. The sink lives until it calls ScoreCall::OnSinkGone, which it does after Finish or Fail.
class ScoreSink {
 public:
  virtual void Result(ItemResult item) = 0;
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
