// Rows of tensors in host memory, and loops over them.
#ifndef BATON_COMMON_BACKEND_CPU_ROWS_H_
#define BATON_COMMON_BACKEND_CPU_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/thread_pool.h"
#include "common/backend/tensor.h"
#include "common/base/check.h"

namespace baton::backend {

template <class T>
T* At(const Tensor& tensor, int64_t row) {
  return static_cast<T*>(tensor.data) + row * tensor.row_stride;
}

inline void* RowOf(const Tensor& tensor, int64_t row) {
  return At<std::byte>(tensor, 0) + row * tensor.row_stride * int64_t(SizeOf(tensor.dtype));
}

inline Element ElementOf(DType dtype) { return static_cast<Element>(dtype); }

inline void CheckShape(const Tensor& tensor, int64_t rows, int64_t cols) {
  BATON_CHECK_EQ(tensor.rows, rows);
  BATON_CHECK_EQ(tensor.cols, cols);
}

inline void CheckF32(const Tensor& tensor) { BATON_CHECK(tensor.dtype == DType::kF32); }

// Null if there is no buffer.
inline const float* FloatsOf(const Buffer* buffer, int64_t floats) {
  if (buffer == nullptr) return nullptr;
  BATON_CHECK_GE(buffer->size_bytes(), static_cast<size_t>(floats) * sizeof(float));
  return static_cast<const float*>(buffer->data());
}

// body(row) for all rows, on several threads if there are enough of `cols` elements.
inline void ForRows(ThreadPool& pool, int64_t rows, int64_t cols,
                    absl::FunctionRef<void(int64_t row)> body) {
  // Less work than this costs less than waking a thread.
  constexpr int64_t kElementsPerTask = 16 << 10;
  const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, cols));
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  pool.Run(static_cast<int>(tasks), [&](int task, int thread) {
    const int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) body(row);
  });
}

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_ROWS_H_
