// Numbers for the names of the workers' pools, and which roles have workers of each.
#ifndef BATON_ROUTER_ROUTING_POOL_NAMES_H_
#define BATON_ROUTER_ROUTING_POOL_NAMES_H_

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"
#include "baton/v1/admin.pb.h"

namespace baton::router {

// Number 0 is the empty name: no pool. Names stay known when their workers are gone, so requests do
// not lose their pool while it is down. Unsynchronized.
class PoolNames {
 public:
  // A worker of this role is of the pool. Returns the pool's number.
  int Add(v1::WorkerRole role, absl::string_view name) {
    auto found = Find(name);
    if (found == pools_.end()) found = pools_.insert(found, {std::string(name), false, false});
    (role == v1::WORKER_ROLE_DECODE ? found->decode : found->prefill) = true;
    return static_cast<int>(found - pools_.begin());
  }

  const std::string& name(int number) const { return pools_[static_cast<size_t>(number)].name; }
  bool only_none() const { return pools_.size() == 1; }

  static constexpr int kAll = -1;
  static constexpr int kUnknown = -2;
  // The pool whose workers of this role serve requests for pool `name`: itself; 0 if only the other
  // role has workers of it; kAll if, moreover, no worker of this role is of no pool. kUnknown: no
  // worker has reported the pool.
  int Serving(v1::WorkerRole role, absl::string_view name) const {
    const auto found = absl::c_find_if(pools_, [name](const Pool& p) { return p.name == name; });
    if (found == pools_.end()) return kUnknown;
    if (Has(*found, role)) return static_cast<int>(found - pools_.begin());
    return Has(pools_[0], role) ? 0 : kAll;
  }

 private:
  struct Pool {
    std::string name;
    bool prefill, decode;  // workers of the role have reported it
  };
  static bool Has(const Pool& pool, v1::WorkerRole role) {
    return role == v1::WORKER_ROLE_DECODE ? pool.decode : pool.prefill;
  }
  std::vector<Pool>::iterator Find(absl::string_view name) {
    return absl::c_find_if(pools_, [name](const Pool& p) { return p.name == name; });
  }

  std::vector<Pool> pools_ = {{"", false, false}};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_POOL_NAMES_H_
