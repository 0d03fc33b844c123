#include "common/kv_store/host_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::kv_store {

StoreUsage HostStore::usage() const {
  absl::MutexLock lock(&mutex_);
  return {index_.bytes(), index_.size(), evicted_};
}

void HostStore::Listen(KeyListener listener) {
  absl::MutexLock lock(&mutex_);
  index_.Listen(std::move(listener));
}

absl::StatusOr<int> HostStore::CountLeading(absl::Span<const SegmentKey> keys, absl::Time) {
  absl::MutexLock lock(&mutex_);
  return index_.CountLeading(keys);
}

absl::StatusOr<int> HostStore::CountToLast(absl::Span<const SegmentKey> keys, absl::Time) {
  absl::MutexLock lock(&mutex_);
  return index_.CountToLast(keys);
}

absl::StatusOr<SegmentBytes> HostStore::Get(const SegmentKey& key, size_t max_bytes, absl::Time) {
  const std::string name = key.ToString();
  absl::MutexLock lock(&mutex_);
  if (!index_.Touch(name)) return absl::NotFoundError(name);
  SegmentBytes value = values_.at(name);
  if (value->size() > max_bytes) {
    return MakeError(
        absl::StatusCode::kDataLoss, "KV_STORE_VALUE",
        absl::StrCat("segment ", name, " has ", value->size(), " bytes, expected ", max_bytes));
  }
  return value;
}

absl::Status HostStore::Put(const SegmentKey& key, const SegmentBytes& value, absl::Time) {
  const auto bytes = static_cast<int64_t>(value->size());
  if (bytes > max_bytes_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_STORE_FULL",
                     absl::StrCat("a segment has ", bytes, " bytes, the host tier ", max_bytes_));
  }
  const std::string name = key.ToString();
  absl::MutexLock lock(&mutex_);
  index_.Remove(name);
  values_.erase(name);
  while (index_.bytes() + bytes > max_bytes_) {
    const std::string last = *index_.Last();
    index_.Remove(last);
    values_.erase(last);
    ++evicted_;
  }
  index_.Put(name, bytes);
  values_.emplace(name, value);
  return absl::OkStatus();
}

void HostStore::Remove(const SegmentKey& key, absl::Time) {
  const std::string name = key.ToString();
  absl::MutexLock lock(&mutex_);
  index_.Remove(name);
  values_.erase(name);
}

}  // namespace baton::kv_store
