# What the CUDA backend consists of, for both libraries that are made of it: the real one (nvcc) and
# the emulated one (C++ on the CPU). tests/cuda/kernel_check.py reads the kernels from here, too.
set(BATON_CUDA_KERNELS
  kernels/attention_split.cu
  kernels/attention_tile.cu
  kernels/blocks.cu
  kernels/elementwise.cu
  kernels/experts.cu
  kernels/experts_matmul.cu
  kernels/experts_quantized.cu
  kernels/latent_attention.cu
  kernels/latent_matmul.cu
  kernels/latent_write.cu
  kernels/matmul.cu
  kernels/matmul_normed.cu
  kernels/matmul_tile.cu
  kernels/norm.cu
  kernels/output_gates.cu
  kernels/quantized.cu
  kernels/quantized_normed.cu
  kernels/quantized_tile.cu
  kernels/recurrence.cu
  kernels/rope_write.cu
  kernels/sampling.cu
  kernels/short_conv.cu
  kernels/wide_attention.cu
)
# Host code that both share.
set(BATON_CUDA_HOST_SOURCES
  attention_operations.cc
  cuda_backend.cc
  expert_operations.cc
  kv_operations.cc
  matrices/device_weights.cc
  matrices/expert_group.cc
  matrices/gated_product.cc
  matrices/matrix_memory.cc
  matrices/product_uses.cc
  matrices/quantized_matrix.cc
  nccl/nccl_links.cc
  product_operations.cc
  products/choices_file.cc
  products/measured_products.cc
  products/product_choices.cc
  recurrence_operations.cc
  row_operations.cc
  runtime/arena.cc
  runtime/host_staging.cc
  runtime/kv_copier.cc
  runtime/peer_pool.cc
  sampling/device_sampler.cc
  sampling/sampling_upload.cc
  steps/batch_upload.cc
  steps/state_spots.cc
  steps/step_recorder.cc
)
# Host code of the real one alone: it calls the CUDA runtime and cuBLASLt.
set(BATON_CUDA_NVIDIA_SOURCES
  make_cuda_backend.cc
  nccl/nccl_library.cc
  products/cublas_library.cc
  products/cublas_products.cc
  products/cuda_stopwatch.cc
  runtime/cuda_runtime.cc
)
list(TRANSFORM BATON_CUDA_KERNELS PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM BATON_CUDA_HOST_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM BATON_CUDA_NVIDIA_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
