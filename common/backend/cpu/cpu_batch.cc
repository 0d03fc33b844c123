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
    sequences_.push_back({rows.first_row, rows.row_count, rows.context,
                          std::vector<int32_t>(rows.blocks.begin(), rows.blocks.end())});
  }
  BATON_CHECK_EQ(sequence_of_.size(), tokens_.size());
  for (int32_t row : logit_rows_) BATON_CHECK(row >= 0 && row < rows()) << "logit row " << row;
}

}  // namespace baton::backend
