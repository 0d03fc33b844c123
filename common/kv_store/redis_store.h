// Segments in Redis or Valkey, which several workers may share. Eviction is the server's
// (maxmemory-policy, e.g. allkeys-lru).
//
// Every call takes a connection of a small pool and has a deadline for all of it, the connection
// included. A connection that failed is closed. Replies are bounded: what a server sends beyond a
// value's size is not read.
#ifndef BATON_COMMON_KV_STORE_REDIS_STORE_H_
#define BATON_COMMON_KV_STORE_REDIS_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/kv_store/segment_store.h"
#include "common/kv_store/store_pause.h"

namespace baton::kv_store {

struct RedisOptions {
  std::string host;
  int port = 6379;
  std::string password;  // empty: no AUTH
};

class RedisStore final : public SegmentStore {
 public:
  // Connects with the first call. The clock must outlive it.
  RedisStore(RedisOptions options, const Clock& clock);
  ~RedisStore() override;

  absl::string_view kind() const override { return "redis"; }
  bool knows_its_keys() const override { return false; }
  StoreUsage usage() const override { return {}; }  // only the server knows
  absl::StatusOr<int> CountLeading(absl::Span<const SegmentKey> keys, absl::Time deadline) override;
  absl::StatusOr<int> CountToLast(absl::Span<const SegmentKey> keys, absl::Time deadline) override;
  absl::StatusOr<SegmentBytes> Get(const SegmentKey& key, size_t max_bytes,
                                   absl::Time deadline) override;
  absl::Status Put(const SegmentKey& key, const SegmentBytes& value, absl::Time deadline) override;
  void Remove(const SegmentKey& key, absl::Time deadline) override;

 private:
  class Connection;
  static constexpr absl::Duration kFairTime = absl::Milliseconds(200);
  // A call that ends late shows a fault of the server only if at least this share of its time
  // passed by clock_. While this process is paused, less passes by an AwakeClock.
  static constexpr double kFairShare = 0.9;
  struct Question {
    absl::Duration given;  // time until its deadline
    absl::Duration at;     // when it began, by clock_
  };

  // Which of the keys the server has, in one round trip.
  absl::StatusOr<std::vector<bool>> Exist(absl::Span<const SegmentKey> keys, absl::Time deadline);
  // An idle one, or a new one.
  absl::StatusOr<std::unique_ptr<Connection>> Take(absl::Time deadline);
  // Back to the idle ones, unless the call has failed it.
  void Return(std::unique_ptr<Connection> connection);
  Question Ask(absl::Time deadline) const { return {deadline - clock_.Now(), clock_.SinceStart()}; }
  // Begins a pause if the status of a call is of the connection or the server. A call that had
  // less than kFairTime, or during which this process did not run, says nothing of the server when
  // it ends late.
  absl::Status Judge(absl::Status status, const Question& asked);

  const RedisOptions options_;
  const Clock& clock_;
  StorePause pause_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_REDIS_STORE_H_
