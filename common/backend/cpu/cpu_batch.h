// An owned copy of a RaggedBatch.
#ifndef BATON_COMMON_BACKEND_CPU_CPU_BATCH_H_
#define BATON_COMMON_BACKEND_CPU_CPU_BATCH_H_

#include <cstdint>
#include <vector>

#include "common/backend/backend.h"

namespace baton::backend {

class CpuBatch final : public DeviceBatch {
 public:
  struct Store {
    int tokens;
    std::vector<int32_t> pages;
  };
  struct Sequence {
    int first_row;
    int row_count;
    int context;
    std::vector<int32_t> blocks;
    std::vector<int32_t> state;
    std::vector<Store> state_stores;

    int64_t block_count(const KvPool& pool) const {
      return static_cast<int64_t>(blocks.size()) / pool.block_tables();
    }
    const int32_t* Table(const KvPool& pool, int table) const {
      return blocks.data() + table * block_count(pool);
    }
  };

  explicit CpuBatch(const RaggedBatch& batch);

  int rows() const { return static_cast<int>(tokens_.size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<Sequence>& sequences() const { return sequences_; }
  const std::vector<int32_t>& logit_rows() const { return logit_rows_; }
  // The sequence that a row belongs to, by index.
  int sequence_of(int row) const { return sequence_of_[row]; }

 private:
  std::vector<int32_t> tokens_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<int> sequence_of_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_CPU_BATCH_H_
