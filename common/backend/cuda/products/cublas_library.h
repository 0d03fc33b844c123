// cuBLASLt, loaded on first use and not linked: it has 500 MB, which deterministic and CPU workers
// do not need, and 94 KB of thread-local variables, which would be taken from the stack of every
// thread and overflow those of the metrics server (100 KB).
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_LIBRARY_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_LIBRARY_H_

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace baton::backend::cuda {

// The library's functions that are called.
struct CublasLibrary {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtGetStatusString) status_string;
  decltype(&::cublasLtGetVersion) version;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulAlgoCheck) check;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&::cublasLtMatmulDescCreate) desc_create;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy;
};

// Loads it once, until the process ends. FAILED_PRECONDITION (CUBLAS), with the loader's message.
// Thread-safe.
absl::StatusOr<const CublasLibrary*> LoadCublas();

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_LIBRARY_H_
