// Element types of weights as they are loaded.
#ifndef BATON_COMMON_BACKEND_CPU_CONVERT_H_
#define BATON_COMMON_BACKEND_CPU_CONVERT_H_

#include <cstdint>

#include "common/backend/tensor.h"

namespace baton::backend {

// `source` may have any alignment. Rounds to nearest, ties to even.
void ConvertElements(const void* source, DType from, int64_t count, DType to, void* target);

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_CONVERT_H_
