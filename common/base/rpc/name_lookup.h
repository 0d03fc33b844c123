// Looks names of hosts up without waiting for it.
#ifndef BATON_COMMON_BASE_RPC_NAME_LOOKUP_H_
#define BATON_COMMON_BASE_RPC_NAME_LOOKUP_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// The numeric addresses of a host, "10.0.0.1" or "fe80::1", each once. NOT_FOUND if it has none,
// UNAVAILABLE if no name server answers.
using HostAddresses = absl::StatusOr<std::vector<std::string>>;

// One question to a resolver. Thread-safe.
class NameLookup {
 public:
  // Once.
  void Answer(HostAddresses addresses) {
    absl::MutexLock lock(&mutex_);
    addresses_ = std::move(addresses);
  }
  // Nothing before the answer.
  std::optional<HostAddresses> addresses() const {
    absl::MutexLock lock(&mutex_);
    return addresses_;
  }
  // Nothing if there is no answer by then.
  std::optional<HostAddresses> Await(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &NameLookup::answered), timeout);
    return addresses_;
  }

 private:
  bool answered() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return addresses_.has_value(); }

  mutable absl::Mutex mutex_;
  std::optional<HostAddresses> addresses_ ABSL_GUARDED_BY(mutex_);
};

class Resolver {
 public:
  virtual ~Resolver() = default;
  // Does not wait. The lookup may outlive the resolver and the caller.
  virtual std::shared_ptr<const NameLookup> Resolve(const std::string& host) = 0;
};

// getaddrinfo: the hosts file, then the DNS, with the time-outs of resolv.conf. May block for half
// a minute.
HostAddresses ResolveBlocking(const std::string& host);

// Runs each lookup on a detached thread: a getaddrinfo that waits for a name server cannot be
// ended, and neither another source nor a shutdown may wait for it. The thread owns all that it
// uses. Thread-safe.
class SystemResolver final : public Resolver {
 public:
  // `resolve` may block; it is called by any thread, even after the resolver is gone.
  explicit SystemResolver(
      std::function<HostAddresses(const std::string&)> resolve = ResolveBlocking)
      : resolve_(std::move(resolve)) {}
  std::shared_ptr<const NameLookup> Resolve(const std::string& host) override;

 private:
  const std::function<HostAddresses(const std::string&)> resolve_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_NAME_LOOKUP_H_
