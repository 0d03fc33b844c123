// The part of a prompt that its request asks prefix caches to retain.
#ifndef BATON_COMMON_WORKER_RETENTION_H_
#define BATON_COMMON_WORKER_RETENTION_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"
#include "common/kv/prefix_key.h"
#include "common/kv/radix_cache.h"

namespace baton::worker {

struct PromptRetention {
  int tokens = 0;  // of the prompt, from its start
  kv::Retention retention;

  // Retains what `cache` has of it. `computed`: the tokens that were inserted.
  void Apply(kv::RadixCache& cache, kv::PrefixKey root, absl::Span<const int32_t> computed) const;
  // Behind so many blocks a prompt of a recurrent model leaves a snapshot, for what is retained to
  // be of use; 0: nothing is.
  int SnapshotBlock(const kv::RadixCache& cache, int block_tokens) const {
    return retention.priority == 0 ? 0 : std::min(tokens / block_tokens, cache.retained_limit());
  }
};

// REQUIRES: CheckRetention (common/base/request_limits.h) is OK, or the message is empty: nothing
// is retained.
PromptRetention FromProto(const v1::Retention& retention, int prompt_tokens);
v1::Retention ToProto(const PromptRetention& retention);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_RETENTION_H_
