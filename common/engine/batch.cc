#include "common/engine/batch.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton::engine {
namespace {

void SetStates(const kv::BlockLease& lease, BatchEntry* entry, int block_tokens) {
  auto tables = std::make_shared<BatchEntry::Tables>();
  tables->pages = lease.FullTables(0, lease.size());
  const size_t state_pages = static_cast<size_t>(lease.shape().window_pages);
  const int end = entry->context + static_cast<int>(entry->tokens.size());
  // The blocks whose pages follow, first the one that the state is read from.
  std::vector<int> blocks;
  if (entry->context > 0) blocks.push_back((entry->context - 1) / block_tokens);
  const size_t first_store = blocks.size();
  for (int block = entry->context / block_tokens; block * block_tokens < end; ++block) {
    if (lease.has_window(block)) blocks.push_back(block);
  }
  BATON_CHECK(blocks.size() > first_store && blocks.back() == (end - 1) / block_tokens)
      << "the token before " << end << " has no pages for its state";
  const size_t of_blocks = tables->pages.size();
  for (const int block : blocks) {
    const absl::Span<const int32_t> pages = lease.WindowPagesOf(block);
    tables->pages.insert(tables->pages.end(), pages.begin(), pages.end());
  }
  const auto pages = absl::MakeConstSpan(tables->pages);
  for (size_t i = first_store; i < blocks.size(); ++i) {
    tables->stores.push_back({std::min((blocks[i] + 1) * block_tokens, end),
                              pages.subspan(of_blocks + i * state_pages, state_pages)});
  }
  entry->blocks = pages.first(of_blocks);
  if (first_store > 0) entry->state = pages.subspan(of_blocks, state_pages);
  entry->state_stores = tables->stores;
  entry->tables = std::move(tables);
}

}  // namespace

model::SamplingHistory BatchEntry::HistoryBehind(int drafted) const {
  model::SamplingHistory behind = history;
  const auto count = static_cast<size_t>(drafted);
  behind.drafts = drafts.first(count);
  if (drafted >= suppressed_draws) behind.suppressed = {};
  if (drafted > 0) {
    behind.allowed =
        allowed_after.empty() ? absl::Span<const uint32_t>() : allowed_after[count - 1];
  }
  return behind;
}

void CheckDrafts(const BatchEntry& entry) {
  if (entry.drafts.empty()) return;
  BATON_CHECK(entry.sample && entry.draws == 1 && !entry.drawn_by && entry.beam_candidates == 0 &&
              !entry.prompt_logprobs && entry.labels.empty() && !entry.embed);
}

bool DraftsAreDrawn(const BatchEntry& entry, int index,
                    const absl::StatusOr<std::vector<model::SampledToken>>& drawn) {
  if (index == 0) return true;
  const auto count = static_cast<size_t>(index);
  return drawn.ok() && drawn->size() == count && drawn->back().token_id == entry.drafts[count - 1];
}

void SetBlocks(const kv::BlockLease& lease, BatchEntry* entry, int block_tokens) {
  const kv::BlockShape shape = lease.shape();
  if (shape.pages() == 1) {
    entry->blocks = lease.ids();
    return;
  }
  if (shape.recurrent) return SetStates(lease, entry, block_tokens);
  auto tables = std::make_shared<BatchEntry::Tables>();
  tables->pages = lease.Tables(0, lease.size());
  // Kernels read whole groups of tokens and hide those before the window. What they read there is
  // the first page that is seen: others may be of another sequence by the time the step runs.
  const int first = shape.FirstWindowBlockAt(entry->context, block_tokens);
  const int end = (entry->context + entry->rows() + block_tokens - 1) / block_tokens;
  for (int table = shape.full_pages; table < shape.pages(); ++table) {
    const auto begin = tables->pages.begin() + int64_t{table} * lease.size();
    BATON_CHECK(std::find(begin + first, begin + end, -1) == begin + end)
        << "tokens from " << entry->context << " on lack window pages";
    std::fill(begin, begin + first, begin[first]);
  }
  entry->blocks = tables->pages;
  entry->tables = std::move(tables);
}

}  // namespace baton::engine
