// What a backend is made from.
#ifndef BATON_COMMON_BACKEND_BACKEND_OPTIONS_H_
#define BATON_COMMON_BACKEND_BACKEND_OPTIONS_H_

#include <string>

#include "common/backend/cuda/cuda_options.h"

namespace baton::backend {

struct BackendOptions {
  std::string device = "cpu";  // "cpu"; "cuda:N"; "auto": CUDA if there is a usable GPU, else CPU
  // "auto": what the device multiplies natively: bfloat16 before float16, else float32.
  enum class Compute { kAuto, kF32, kBF16, kF16 };
  Compute compute = Compute::kAuto;
  // CPU only: quantised weights become those of `compute` when they are loaded. Else they stay
  // packed, and products with them round activations to 8 bits.
  bool dequantize_weights = false;
  int thread_count = 0;  // CPU only; 0: all cores this process may use
  // GPU only: the share of the device's memory that the process may take, for weights, KV pool and
  // workspaces together.
  double gpu_memory_utilization = 0.9;
  // The bits of a row depend on neither batch nor chunking. A CPU always computes so; a GPU that
  // need not may multiply with a library's kernels, which differ by the number of rows.
  bool deterministic = true;
  CudaOptions cuda = {};
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_BACKEND_OPTIONS_H_
