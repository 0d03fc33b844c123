#include "router/request/call_registry.h"

#include <vector>

namespace baton::router {

CallRegistry::Entry CallRegistry::Add(const std::string& tenant, const std::string& request_id,
                                      std::weak_ptr<CancellableCall> call) {
  absl::MutexLock lock(&mutex_);
  return Entry(this, calls_.emplace(Key(tenant, request_id), std::move(call)));
}

int CallRegistry::Cancel(const std::string& tenant, const std::string& request_id) {
  // A call that ends takes this lock under its own: so it is cancelled without this lock.
  std::vector<std::shared_ptr<CancellableCall>> found;
  {
    absl::MutexLock lock(&mutex_);
    const auto [begin, end] = calls_.equal_range(Key(tenant, request_id));
    for (auto it = begin; it != end; ++it) {
      if (auto call = it->second.lock()) found.push_back(std::move(call));
    }
  }
  int cancelled = 0;
  for (const auto& call : found) cancelled += call->CancelById() ? 1 : 0;
  return cancelled;
}

size_t CallRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return calls_.size();
}

void CallRegistry::Remove(Calls::iterator at) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(at);
}

}  // namespace baton::router
