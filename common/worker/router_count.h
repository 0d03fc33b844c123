// How many routers must accept a worker before it is ready.
#ifndef BATON_COMMON_WORKER_ROUTER_COUNT_H_
#define BATON_COMMON_WORKER_ROUTER_COUNT_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/rpc/name_lookup.h"

namespace baton::worker {

// A fixed number, or as many routers as a name has addresses, such as a headless Service of
// Kubernetes, which lists the routers that are ready. A name of IPv4 and IPv6 lists each router
// twice, so the kind with more addresses counts. For one thread.
class RouterCount {
 public:
  static constexpr absl::Duration kRefresh = absl::Seconds(1);

  // With an empty `host`, the number is `least`. The references must outlive it.
  RouterCount(int least, std::string host, Resolver& resolver, const Clock& clock);

  // At least `least`, and at least one with a host. Nothing before the first answer, and while the
  // host has no address; while no name server answers, the last answer stays. Does not wait. Call
  // it again and again: the name is looked up by these calls, kRefresh after the last answer.
  std::optional<int> Get();

 private:
  void Take(const HostAddresses& answer);

  const int least_;
  const std::string host_;
  Resolver& resolver_;
  const Clock& clock_;
  std::shared_ptr<const NameLookup> lookup_;  // under way
  absl::Duration due_;                        // of the next lookup
  std::optional<int> listed_;
  std::string failure_;  // of the last answer, as logged
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_ROUTER_COUNT_H_
