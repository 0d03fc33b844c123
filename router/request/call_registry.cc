#include "router/request/call_registry.h"

#include <utility>

#include "common/base/error.h"

namespace baton::router {

CallRegistry::Entry CallRegistry::Add(const std::string& tenant, const std::string& request_id,
                                      std::weak_ptr<CancellableCall> call) {
  absl::MutexLock lock(&mutex_);
  return Entry(this, calls_.emplace(Key(tenant, request_id), std::move(call)));
}

int CallRegistry::Cancel(const std::string& tenant, const std::string& request_id) {
  Found found;
  {
    absl::MutexLock lock(&mutex_);
    const auto [begin, end] = calls_.equal_range(Key(tenant, request_id));
    for (auto it = begin; it != end; ++it) {
      if (auto call = it->second.lock()) found.push_back(std::move(call));
    }
  }
  return End(found, MakeError(absl::StatusCode::kCancelled, "CANCELLED_BY_ID",
                              "a Cancel call with the request's id ended it"));
}

int CallRegistry::EndAll(const absl::Status& error) {
  Found found;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, weak] : calls_) {
      if (auto call = weak.lock()) found.push_back(std::move(call));
    }
  }
  return End(found, error);
}

// A call that ends takes the registry's lock under its own, so it is ended without that lock.
int CallRegistry::End(const Found& found, const absl::Status& error) {
  int ended = 0;
  for (const auto& call : found) ended += call->EndWith(error) ? 1 : 0;
  return ended;
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
