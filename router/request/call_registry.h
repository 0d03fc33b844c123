// The requests inside a router by tenant and id, so that a Cancel call finds them, and a router
// that stops ends them with an error.
#ifndef BATON_ROUTER_REQUEST_CALL_REGISTRY_H_
#define BATON_ROUTER_REQUEST_CALL_REGISTRY_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {

class CancellableCall {
 public:
  virtual ~CancellableCall() = default;
  // Answers the request with this error. False if it has ended already. Thread-safe.
  virtual bool EndWith(const absl::Status& error) = 0;
};

// Thread-safe. Admission bounds the number of entries. Takes its lock once when a request enters
// and once when it ends, for a look-up in a tree. Must outlive its entries.
class CallRegistry {
 private:
  using Key = std::pair<std::string, std::string>;  // tenant, request id
  using Calls = std::multimap<Key, std::weak_ptr<CancellableCall>>;

 public:
  // Keeps a call in the registry until it is destroyed or reset. Move-only; for one thread.
  class Entry {
   public:
    Entry() = default;
    Entry(Entry&& other) noexcept
        : registry_(std::exchange(other.registry_, nullptr)), at_(other.at_) {}
    Entry& operator=(Entry&& other) noexcept {
      std::swap(registry_, other.registry_);
      std::swap(at_, other.at_);
      return *this;
    }
    ~Entry() { reset(); }
    void reset() {
      if (registry_ != nullptr) std::exchange(registry_, nullptr)->Remove(at_);
    }

   private:
    friend class CallRegistry;
    Entry(CallRegistry* registry, Calls::iterator at) : registry_(registry), at_(at) {}
    CallRegistry* registry_ = nullptr;
    Calls::iterator at_;
  };

  // Several calls may have the same tenant and id. The tenant is the one that the request counts
  // for, so a tenant cannot cancel requests of another one.
  [[nodiscard]] Entry Add(const std::string& tenant, const std::string& request_id,
                          std::weak_ptr<CancellableCall> call);

  // Ends all calls with this tenant and id with CANCELLED_BY_ID, and returns how many it has ended.
  // Do not call it with the lock of a call held.
  int Cancel(const std::string& tenant, const std::string& request_id);
  // The same with all calls and any error.
  int EndAll(const absl::Status& error);

  size_t size() const;

 private:
  using Found = std::vector<std::shared_ptr<CancellableCall>>;
  static int End(const Found& found, const absl::Status& error);
  void Remove(Calls::iterator at);

  mutable absl::Mutex mutex_;
  Calls calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_CALL_REGISTRY_H_
