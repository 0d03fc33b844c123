// Places outside the KV pool that keep KV of prompts: host memory, files, Redis.
//
// A segment is the KV of some consecutive whole blocks of a prompt, all layers. Its value also has
// the whole prompt up to its end, so that a reader compares tokens, as the prefix cache does: equal
// keys never decide that KV may be used (segment_value.h).
//
// Where a model has recurrent layers, a segment has the KV of the attention layers alone. Stores
// keep the state behind a segment's last token apart, under another key (SegmentKey::State), and
// few segments have one. A prompt's segments are of use up to the last one with a state.
#ifndef BATON_COMMON_KV_STORE_SEGMENT_STORE_H_
#define BATON_COMMON_KV_STORE_SEGMENT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/kv/prefix_key.h"

namespace baton::kv_store {

struct SegmentKey {
  uint64_t model_fingerprint = 0;
  uint64_t layout_fingerprint = 0;
  int tokens = 0;            // of a segment
  kv::PrefixKey prefix = 0;  // of the segment's last block; its root names the namespace

  // The key of the state behind the segment.
  SegmentKey State() const {
    return {model_fingerprint, layout_fingerprint, tokens, kv::SnapshotKey(prefix)};
  }
  // Serves as a file name and a Redis key: lower-case letters, digits and '-', at most 64.
  std::string ToString() const;
  bool operator==(const SegmentKey& other) const = default;
};

// Parses what ToString() returns; nullopt for any other text.
std::optional<SegmentKey> ParseSegmentKey(absl::string_view text);

// Called when a store has a segment now, or has it no more. Two calls may say the same.
using KeyListener = std::function<void(absl::string_view key, bool held)>;

// An encoded segment (segment_value.h); immutable, shared by those who read and write it.
using SegmentBytes = std::shared_ptr<const std::vector<std::byte>>;

struct StoreUsage {
  int64_t bytes = 0;
  int64_t segments = 0;
  int64_t evicted = 0;  // segments, since the start
};

// Thread-safe. All but the first four may wait for I/O, at most until `deadline`, and then return
// DEADLINE_EXCEEDED; UNAVAILABLE if the store cannot be reached. A store that has failed answers
// later calls at once with UNAVAILABLE until a pause is over.
class SegmentStore {
 public:
  virtual ~SegmentStore() = default;
  virtual absl::string_view kind() const = 0;  // "host", "file", "redis"
  // Whether CountLeading waits for nothing.
  virtual bool knows_its_keys() const = 0;
  // Whether no call waits for anything.
  virtual bool in_memory() const { return false; }
  virtual StoreUsage usage() const = 0;  // of what this process knows
  // Reports what the store has and every change from now on, to one listener, the last one given.
  // It is called under a lock: it must be quick and must not call the store. Only stores that know
  // their keys report; of others nothing is reported.
  virtual void Listen(KeyListener) {}

  // How many of `keys`, from the first on, the store has. Marks them as used: the first as the most
  // recently used, so that the segments of a prompt are evicted from its end.
  virtual absl::StatusOr<int> CountLeading(absl::Span<const SegmentKey> keys,
                                           absl::Time deadline) = 0;
  // How many of `keys` there are up to the last one that the store has; 0: it has none of them.
  // Marks that one as used.
  virtual absl::StatusOr<int> CountToLast(absl::Span<const SegmentKey> keys,
                                          absl::Time deadline) = 0;
  // NOT_FOUND. REQUIRES: max_bytes > 0. A value larger than that is DATA_LOSS, and is not read.
  virtual absl::StatusOr<SegmentBytes> Get(const SegmentKey& key, size_t max_bytes,
                                           absl::Time deadline) = 0;
  // Keeps the value, evicting the least recently used ones; overwrites. RESOURCE_EXHAUSTED if there
  // is no room for it (larger than the store, or a full disk).
  virtual absl::Status Put(const SegmentKey& key, const SegmentBytes& value,
                           absl::Time deadline) = 0;
  // Drops a value that has turned out to be damaged.
  virtual void Remove(const SegmentKey& key, absl::Time deadline) = 0;
};

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_SEGMENT_STORE_H_
