// cuBLASLt, loaded when the first backend wants it and not with the program: it is 500 MB that a
// deterministic or a CPU worker has no use for, and its 94 KB of thread-local variables, were it
// linked, would come off the stack of every thread, which the threads of the metrics server (100
// KB) do not survive.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_LIBRARY_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_LIBRARY_H_

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace baton::backend::cuda {

// The functions of the library that we call.
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

// Loads it once; it stays until the process ends. FAILED_PRECONDITION (CUBLAS), with what the
// loader says. Thread-safe.
absl::StatusOr<const CublasLibrary*> LoadCublas();

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_LIBRARY_H_
