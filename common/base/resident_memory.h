// How much memory a process has in RAM, as Linux counts it: for benchmarks and tests.
#ifndef BATON_COMMON_BASE_RESIDENT_MEMORY_H_
#define BATON_COMMON_BASE_RESIDENT_MEMORY_H_

#include <sys/types.h>

#include <cstdint>

namespace baton {

// Resident memory of a process in bytes; 0 if it cannot be read.
int64_t ResidentBytesOf(pid_t pid);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RESIDENT_MEMORY_H_
