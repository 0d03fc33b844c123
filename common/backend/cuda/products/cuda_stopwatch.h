// A stopwatch of GPU events.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUDA_STOPWATCH_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUDA_STOPWATCH_H_

#include <memory>

#include "common/backend/cuda/products/product_library.h"

namespace baton::backend::cuda {

// index: of the device.
std::unique_ptr<Stopwatch> MakeCudaStopwatch(int index);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUDA_STOPWATCH_H_
