// A prompt whose KV a worker computes, or finds in its prefix cache, its KV tiers or at another
// worker.
#ifndef BATON_COMMON_PREFILL_PROMPT_H_
#define BATON_COMMON_PREFILL_PROMPT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/trace_context.h"
#include "common/kv/prefix_key.h"
#include "common/worker/kv_hint.h"

namespace baton::prefill {

struct Prompt {
  std::string request_id;
  TraceContext trace_context;  // for log lines
  std::vector<int32_t> tokens;
  kv::PrefixKey root = 0;
  std::string cache_salt;  // part of `root`
  worker::KvHint kv_hint;
  absl::Time deadline = absl::InfiniteFuture();  // the caller's, for the whole request
  std::optional<int> prompt_logprobs;            // if set, the prompt is not taken from the cache
  // Only the whole blocks of so many first tokens go into the prefix cache. nullopt: all.
  std::optional<int> shared_tokens;

  std::vector<kv::PrefixKey> keys;  // one per whole block; empty without a prefix cache
  // True while a load or a fetch brings KV of the prompt into the prefix cache: it is not computed
  // meanwhile.
  bool fetching = false;

  int size() const { return static_cast<int>(tokens.size()); }
  int cacheable_tokens() const { return std::min(shared_tokens.value_or(size()), size()); }
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_PROMPT_H_
