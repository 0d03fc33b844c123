#include "common/kv_store/lru_index.h"

#include <utility>

namespace baton::kv_store {

void LruIndex::Put(const std::string& key, int64_t bytes) {
  Remove(key);
  entries_.push_front({key, bytes});
  places_.emplace(key, entries_.begin());
  bytes_ += bytes;
  if (listener_ != nullptr) listener_(key, true);
}

void LruIndex::Listen(KeyListener listener) {
  listener_ = std::move(listener);
  if (listener_ == nullptr) return;
  for (const Entry& entry : entries_) listener_(entry.key, true);
}

bool LruIndex::Touch(absl::string_view key) {
  const auto at = places_.find(key);
  if (at == places_.end()) return false;
  entries_.splice(entries_.begin(), entries_, at->second);
  return true;
}

void LruIndex::Remove(absl::string_view key) {
  const auto at = places_.find(key);
  if (at == places_.end()) return;
  if (listener_ != nullptr) listener_(at->second->key, false);
  bytes_ -= at->second->bytes;
  entries_.erase(at->second);
  places_.erase(at);
}

std::optional<std::string> LruIndex::Last() const {
  if (entries_.empty()) return std::nullopt;
  return entries_.back().key;
}

int LruIndex::CountLeading(absl::Span<const SegmentKey> keys) {
  size_t count = 0;
  while (count < keys.size() && Contains(keys[count].ToString())) ++count;
  for (size_t i = count; i > 0; --i) Touch(keys[i - 1].ToString());
  return static_cast<int>(count);
}

int LruIndex::CountToLast(absl::Span<const SegmentKey> keys) {
  size_t count = keys.size();
  while (count > 0 && !Touch(keys[count - 1].ToString())) --count;
  return static_cast<int>(count);
}

}  // namespace baton::kv_store
