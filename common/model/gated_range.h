// Keeps the values between gate and up and the product behind them in float16's range, which ends
// at 65,504: those of Gemma's gated MLPs are larger, and squares soon are. They are multiplied by a
// power of two, which changes no value unless it becomes subnormal, and what follows is divided by
// it.
//
// The power follows from the weights, so it holds for every prompt, and equal files have equal
// powers. A row x of length L that a norm multiplies with w gives |(w x) · g| <= L |w g| for a row
// g of gate (Cauchy and Schwarz), and so for up; no activation is larger than its argument, or than
// its square where there is no gate.
//
// Thread: owned by the thread that loads.
#ifndef BATON_COMMON_MODEL_GATED_RANGE_H_
#define BATON_COMMON_MODEL_GATED_RANGE_H_

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/backend/cpu/thread_pool.h"
#include "common/backend/tensor.h"

namespace baton::model {

// The length of the longest row.
double LongestRow(const backend::HostMatrix& matrix, backend::ThreadPool& pool);

class GatedRange {
 public:
  // length: the largest that an input has before `weight`, which may be empty: ones.
  GatedRange(double length, std::vector<float> weight)
      : length_(length), weight_(std::move(weight)) {}

  // Takes the parts of the matrix one after the other: all rows of gate, then all of up.
  void Add(const backend::HostMatrix& part, backend::ThreadPool& pool);
  void Add(const backend::QuantizedHostMatrix& part, backend::ThreadPool& pool);

  // At most 1. At least 2^-12: below, values that matter would become subnormal, and a request that
  // yet exceeds the range fails with NON_FINITE_LOGITS. REQUIRES: gate, if there is one, and up
  // have been added.
  float Scale(bool has_gate) const;

 private:
  const double length_;
  const std::vector<float> weight_;
  std::vector<double> squared_lengths_;  // of the rows added, times the weight
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_GATED_RANGE_H_
