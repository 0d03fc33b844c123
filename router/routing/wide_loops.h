// Marks a function whose loops over columns are compiled twice, the second time for AVX2; which one
// runs is decided when the program starts. Both give the same bits: AVX2 alone has no fused
// multiply-add. The attribute needs GCC and glibc; elsewhere, and under sanitizers, which
// instrument what runs that early, there is one.
#ifndef BATON_ROUTER_ROUTING_WIDE_LOOPS_H_
#define BATON_ROUTER_ROUTING_WIDE_LOOPS_H_

#include <cstdlib>  // defines __GLIBC__

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__OPTIMIZE__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BATON_WIDE_LOOPS __attribute__((target_clones("avx2", "default")))
#else
#define BATON_WIDE_LOOPS
#endif

#endif  // BATON_ROUTER_ROUTING_WIDE_LOOPS_H_
