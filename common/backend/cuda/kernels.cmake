# What the CUDA backend consists of, for both libraries that are made of it: the real one (nvcc) and
# the emulated one (C++ on the CPU). tests/cuda/kernel_check.py reads the kernels from here, too.
set(BATON_CUDA_KERNELS
  kernels/attention_split.cu
  kernels/attention_tile.cu
  kernels/blocks.cu
  kernels/elementwise.cu
  kernels/matmul.cu
  kernels/norm.cu
  kernels/quantized.cu
  kernels/rope_write.cu
  kernels/sampling.cu
)
# Host code that both share.
set(BATON_CUDA_HOST_SOURCES
  arena.cc
  batch_upload.cc
  choices_file.cc
  cuda_backend.cc
  host_staging.cc
  device_sampler.cc
  device_weights.cc
  gated_product.cc
  kv_copier.cc
  measured_products.cc
  product_choices.cc
  product_uses.cc
  quantized_matrix.cc
  sampling_upload.cc
  step_recorder.cc
)
# Host code of the real one alone: it calls the CUDA runtime and cuBLASLt.
set(BATON_CUDA_NVIDIA_SOURCES
  cublas_library.cc
  cublas_products.cc
  cuda_runtime.cc
  cuda_stopwatch.cc
  make_cuda_backend.cc
)
list(TRANSFORM BATON_CUDA_KERNELS PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM BATON_CUDA_HOST_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM BATON_CUDA_NVIDIA_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
