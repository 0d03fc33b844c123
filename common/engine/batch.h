// What one step computes: ragged rows over block tables, prefill chunks and decode tokens alike.
#ifndef BATON_COMMON_ENGINE_BATCH_H_
#define BATON_COMMON_ENGINE_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/kv/block_pool.h"
#include "common/model/sampler.h"

namespace baton::engine {

// One sequence's share of a step. The spans must stay valid until Step returns.
struct BatchEntry {
  absl::Span<const int32_t> tokens;       // to compute now, 1 or more
  int context = 0;                        // tokens before them, whose KV is in `blocks`
  absl::Span<const kv::BlockId> blocks;   // covers context + tokens.size() tokens
  bool sample = false;                    // draw the token behind the last of `tokens`
  model::SamplingParams sampling;
};

struct Batch {
  std::vector<BatchEntry> entries;
  int rows() const {
    int rows = 0;
    for (const BatchEntry& entry : entries) rows += static_cast<int>(entry.tokens.size());
    return rows;
  }
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_BATCH_H_
