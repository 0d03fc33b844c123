// BATON_PORTABLE marks a function that host code and CUDA kernels both call.
#ifndef BATON_COMMON_BASE_PORTABLE_H_
#define BATON_COMMON_BASE_PORTABLE_H_

#if defined(__CUDACC__)
#define BATON_PORTABLE __host__ __device__
#else
#define BATON_PORTABLE
#endif

#endif  // BATON_COMMON_BASE_PORTABLE_H_
