// The options of a backend that NVIDIA GPUs alone have. Part of every build.
#ifndef BATON_COMMON_BACKEND_CUDA_CUDA_OPTIONS_H_
#define BATON_COMMON_BACKEND_CUDA_CUDA_OPTIONS_H_

#include <string>

namespace baton::backend {

struct CudaOptions {
  // Without BackendOptions::deterministic: the file that keeps which kernel was measured as the
  // fastest for each matrix product of a model. Empty: nothing is kept.
  std::string cublas_algorithms = "";
  // Leaves device memory for links with other GPUs: 512 MiB.
  bool device_links = false;
  // For tests: on any GPU, compute in a T4's types and within a T4's memory.
  bool as_t4 = false;
};

// A file for cublas_algorithms among the user's caches: in $XDG_CACHE_HOME/baton, else in
// ~/.cache/baton. Empty if the environment names neither by an absolute path.
std::string DefaultCublasAlgorithms();

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CUDA_CUDA_OPTIONS_H_
