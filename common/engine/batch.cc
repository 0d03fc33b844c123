#include "common/engine/batch.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::engine {

void SetBlocks(const kv::BlockLease& lease, BatchEntry* entry, int block_tokens) {
  const kv::BlockShape shape = lease.shape();
  if (shape.pages() == 1) {
    entry->blocks = lease.ids();
    return;
  }
  auto tables = std::make_shared<std::vector<int32_t>>(lease.Tables(0, lease.size()));
  // Kernels read whole groups of tokens and hide those before the window. What they read there is
  // the first page that is seen: others may be of another sequence by the time the step runs.
  const int first = shape.FirstWindowBlockAt(entry->context, block_tokens);
  const int end =
      (entry->context + static_cast<int>(entry->tokens.size()) + block_tokens - 1) / block_tokens;
  for (int table = shape.full_pages; table < shape.pages(); ++table) {
    const auto begin = tables->begin() + int64_t{table} * lease.size();
    BATON_CHECK(std::find(begin + first, begin + end, -1) == begin + end)
        << "tokens from " << entry->context << " on lack window pages";
    std::fill(begin, begin + first, begin[first]);
  }
  entry->blocks = *tables;
  entry->tables = std::move(tables);
}

}  // namespace baton::engine
