// The tenants' recent prompts, by which the router explains why a prompt was not cached.
//
// A prompt is compared with those of its own tenant only: no explanation shows a tenant another's
// tokens. In the same namespace of the prefix caches, chains of prefix keys find the prompt with
// the longest common beginning, since equal keys stand for equal beginnings; tokens are compared
// only in the block where two chains part. A comparison costs a few look-ups for each of the
// tenant's prompts, whatever their length.
#ifndef BATON_ROUTER_REQUEST_PROMPT_HISTORY_H_
#define BATON_ROUTER_REQUEST_PROMPT_HISTORY_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"
#include "common/kv/prefix_key.h"

namespace baton::router {

// A prompt as the prefix caches see it.
struct PromptChain {
  absl::string_view tenant;
  kv::PrefixKey root = 0;  // the namespace
  int block_tokens = 16;
  absl::Span<const int32_t> tokens;
  absl::Span<const kv::PrefixKey> keys;  // of its whole blocks
};

// Why a prompt was not cached as far as the tenant's earlier prompts would have allowed.
struct PromptMiss {
  v1::CacheMissCause cause = v1::CACHE_MISS_CAUSE_UNSPECIFIED;
  // Computed, and would have been cached without the cause. CHANGED: the tokens after the
  // difference that are the same in both prompts, up to the next difference.
  int lost_tokens = 0;
  std::string earlier_request_id;
  // CHANGED only.
  int first_different_token = 0;
  // Around it, in both prompts: up to kShownTokens before it, it, and up to kShownTokens after it.
  std::vector<int32_t> shown;
  std::vector<int32_t> earlier_shown;
};
inline constexpr int kShownTokens = 12;

// Thread-safe.
class PromptHistory {
 public:
  static constexpr size_t kPromptsPerTenant = 64;

  // Keeps at most `max_bytes` of token ids and keys, of the latest prompts. 0: nothing.
  explicit PromptHistory(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // A prompt that has been computed. Replaces the tenant's earlier prompts that it continues or
  // repeats, and its oldest one beyond kPromptsPerTenant. Copies tokens and keys.
  void Add(const PromptChain& prompt, absl::string_view request_id);
  // The same for a prompt whose tokens and keys the caller needs no more: copying 100,000 of them
  // takes 0.2 ms, and more where the memory is new.
  using TokenIds = google::protobuf::RepeatedField<int32_t>;
  void Add(absl::string_view tenant, kv::PrefixKey root, int block_tokens, TokenIds tokens,
           std::vector<kv::PrefixKey> keys, absl::string_view request_id);

  // `cached_tokens` of the prompt were found in a prefix cache. nullopt if none of the tenant's
  // earlier prompts would have allowed more, or is similar.
  std::optional<PromptMiss> Explain(const PromptChain& prompt, int cached_tokens) const;

  int64_t bytes() const;

 private:
  struct Kept {
    std::string tenant;
    kv::PrefixKey root = 0;
    TokenIds tokens;
    std::vector<kv::PrefixKey> keys;
    std::string request_id;

    int64_t bytes() const {
      return static_cast<int64_t>(sizeof(Kept) + tenant.size() + request_id.size() +
                                  static_cast<size_t>(tokens.Capacity()) * sizeof(int32_t) +
                                  keys.capacity() * sizeof(kv::PrefixKey));
    }
  };
  using Order = std::list<Kept>;  // newest first

  static int CommonBlocks(const Kept& kept, const PromptChain& prompt, int at_least);
  static int CommonTokens(const Kept& kept, const PromptChain& prompt, int common_blocks);
  void Insert(Kept made, int block_tokens);
  void Drop(Order::iterator kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_bytes_;
  mutable absl::Mutex mutex_;
  Order order_ ABSL_GUARDED_BY(mutex_);
  // Newest last.
  absl::flat_hash_map<std::string, std::vector<Order::iterator>> tenants_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_PROMPT_HISTORY_H_
