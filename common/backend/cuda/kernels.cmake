# What the CUDA backend consists of, for both libraries that are made of it: the real one (nvcc) and
# the emulated one (C++ on the CPU). tests/cuda/kernel_check.py reads the kernels from here, too.
set(BATON_CUDA_KERNELS
  kernels/attention.cu
)
# Host code that both share.
set(BATON_CUDA_HOST_SOURCES
  attention_plan.cc
)
# Host code of the real one alone: it calls the CUDA runtime and cuBLASLt.
set(BATON_CUDA_NVIDIA_SOURCES
)
list(TRANSFORM BATON_CUDA_KERNELS PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM BATON_CUDA_HOST_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM BATON_CUDA_NVIDIA_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
