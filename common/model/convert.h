// Converts weight values between the dtypes of files and of devices.
#ifndef BATON_COMMON_MODEL_CONVERT_H_
#define BATON_COMMON_MODEL_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "common/backend/tensor.h"

namespace baton::model {

// Converts to float32, exactly for every value. `source` may have any alignment.
void ToF32(const void* source, backend::DType dtype, size_t count, float* out);

// The loss of rounding a set of values from one dtype to another.
struct RoundingLoss {
  int64_t values = 0;
  int64_t inexact = 0;    // changed by rounding, overflows included
  int64_t overflows = 0;  // finite values beyond the target's range
};

// Counts `count` more values; reads none if the target dtype holds every value of the source's.
void CountLoss(const void* source, backend::DType from, backend::DType to, size_t count,
               RoundingLoss* loss);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_CONVERT_H_
