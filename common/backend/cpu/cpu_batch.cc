#include "common/backend/cpu/cpu_batch.h"

#include "common/base/check.h"

namespace baton::backend {

CpuBatch::CpuBatch(const RaggedBatch& batch)
    : tokens_(batch.tokens.begin(), batch.tokens.end()),
      logit_rows_(batch.logit_rows.begin(), batch.logit_rows.end()) {
  for (const SequenceRows& rows : batch.sequences) {
    BATON_CHECK_EQ(rows.first_row, static_cast<int>(sequence_of_.size()));
    BATON_CHECK_GE(rows.row_count, 0);
    BATON_CHECK_GE(rows.context, 0);
    sequence_of_.insert(sequence_of_.end(), rows.row_count, static_cast<int>(sequences_.size()));
    Sequence& sequence = sequences_.emplace_back(
        Sequence{rows.first_row,
                 rows.row_count,
                 rows.context,
                 std::vector<int32_t>(rows.blocks.begin(), rows.blocks.end()),
                 std::vector<int32_t>(rows.state.begin(), rows.state.end()),
                 {}});
    int tokens = rows.context;
    for (const StateStore& store : rows.state_stores) {
      BATON_CHECK_GT(store.tokens, tokens);
      tokens = store.tokens;
      sequence.state_stores.push_back(
          {tokens, std::vector<int32_t>(store.pages.begin(), store.pages.end())});
    }
    BATON_CHECK_LE(tokens, rows.context + rows.row_count);
  }
  BATON_CHECK_EQ(sequence_of_.size(), tokens_.size());
  for (int32_t row : logit_rows_) BATON_CHECK(row >= 0 && row < rows()) << "logit row " << row;
}

}  // namespace baton::backend
