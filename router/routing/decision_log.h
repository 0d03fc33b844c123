// The last routing decisions and their outcomes: for `baton explain --last`, the log, and the
// metrics that compare predictions with outcomes.
#ifndef BATON_ROUTER_ROUTING_DECISION_LOG_H_
#define BATON_ROUTER_ROUTING_DECISION_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/admin.pb.h"
#include "router/metrics.h"
#include "router/routing/decision.h"

namespace baton::router {

v1::Decision ToProto(const Decision& decision);

// One line: the choice, then each candidate.
std::string ToText(const Decision& decision);

// Thread-safe.
class DecisionLog {
 public:
  static constexpr int kCapacity = 1024;

  // Each `log_every`-th decision is a line in the process's log; 0: none. `metrics` must outlive
  // it.
  DecisionLog(int log_every, RouterMetrics& metrics) : log_every_(log_every), metrics_(metrics) {}

  // Replaces the oldest once there are kCapacity. Returns the decision's number, for OnFirstToken.
  int64_t Add(std::shared_ptr<const Decision> decision);
  // The first token has come, `after` the decision. No effect if the decision has been replaced.
  void OnFirstToken(int64_t number, absl::Duration after, int cached_tokens);

  // The newest first; those of one request unless `request_id` is empty.
  std::vector<v1::Decision> Last(int max, const std::string& request_id) const;

 private:
  struct Entry {
    std::shared_ptr<const Decision> decision;
    std::optional<absl::Duration> first_token_after;
    int cached_tokens = 0;
  };

  const int log_every_;
  RouterMetrics& metrics_;
  mutable absl::Mutex mutex_;
  std::vector<Entry> ring_ ABSL_GUARDED_BY(mutex_);  // number n is at n % kCapacity
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_DECISION_LOG_H_
