// The KV pools of prefill workers that this decode worker has mapped.
#ifndef BATON_COMMON_TRANSFER_SHARED_POOLS_H_
#define BATON_COMMON_TRANSFER_SHARED_POOLS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/shared_pool.h"

namespace baton::transfer {

// What a prefill worker of the same host says with the first transfer.
struct SharedPoolOffer {
  std::string socket;
  std::string token;
  bool device = false;  // its pool is in device memory
};

// Why KV comes the way it does: label `reason` of baton_kv_transfers_total.
enum class PlaneReason {
  kMapped,      // through shared memory
  kOpened,      // from device to device
  kLinked,      // over a device link
  kConnecting,  // over gRPC: the first transfers, until the pool or the link is open
  kNotOffered,  // over gRPC: another host, or the prefill worker does not share its pool
  kFailed,      // over gRPC: opening or reading the pool, or the link, failed: in the log
  kUnproven,    // over gRPC: the pool's probe block had other bytes, or could not be read in time
  kOff,         // over gRPC: --kv-transport grpc
};
const char* Name(PlaneReason reason);
std::vector<std::string> PlaneReasonNames();

// Thread-safe. A thread that this object owns connects, and drops the pool of a prefill worker that
// has gone: its memory would stay otherwise.
class SharedPools {
 public:
  // The token of the pool whose socket has this name.
  using TokenOf = std::function<std::string(absl::string_view socket)>;
  // What it takes: pools in host memory, if `host_pools`; and those in device memory that `opener`
  // opens, unless it is null. The opener must outlive this and all pools. token_of: for the pools
  // that it finds on the host by itself (host_sockets.h), before any is offered: those that are
  // there now, and later ones when their workers call. Null: it finds none.
  SharedPools(const kv::KvLayout& layout, const Clock& clock, bool host_pools = true,
              backend::KvCopier* opener = nullptr, TokenOf token_of = nullptr);
  ~SharedPools();

  uint64_t host() const { return host_; }
  bool opens_device_pools() const { return opener_ != nullptr; }
  struct Found {
    std::shared_ptr<SharedPool> pool;  // null: not mapped
    PlaneReason reason = PlaneReason::kNotOffered;
  };
  Found Find(uint64_t prefill_epoch);
  // Maps the pool of the prefill worker in the background, unless it is mapped already, or of a
  // kind that is not taken. Of one that failed, again after a while; never again if reading it has
  // failed, or its probe block.
  void Offer(uint64_t prefill_epoch, SharedPoolOffer offer);

  // Waits until no offer waits to be tried. False: some still do after `timeout`.
  bool WaitUntilTried(absl::Duration timeout = absl::InfiniteDuration());

 private:
  static constexpr size_t kMaxPools = 256;
  static constexpr size_t kMaxCalls = 64;
  struct Entry {
    uint64_t epoch = 0;
    SharedPoolOffer last;  // what was offered last
    bool found = false;    // by its name, not offered by the worker
    bool waits = false;    // to be tried
    std::shared_ptr<SharedPool> pool;
    absl::Duration failed_at = -absl::InfiniteDuration();
    bool unproven = false;
  };

  void Run();
  // Offers itself the pools of the host.
  void FindPools();
  void Take(uint64_t prefill_epoch, SharedPoolOffer offer, bool found);
  // False: there was no call, or one of another user.
  bool AcceptCall();
  // The first offer that waits, tried without the lock. False: there is none.
  bool TryNext();
  Entry* FindEntry(uint64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasOffer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake();

  const kv::KvLayout layout_;
  const Clock& clock_;
  const bool host_pools_;
  backend::KvCopier* const opener_;
  const TokenOf token_of_;
  const uint64_t host_;
  FileDescriptor wake_;
  FileDescriptor listener_;            // for calls; none without token_of
  std::vector<FileDescriptor> calls_;  // of the thread; answered when what was found is tried
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool trying_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // newest use first
  std::thread thread_;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_SHARED_POOLS_H_
