// The resident memory (RSS) of a process, for benchmarks and tests.
#ifndef BATON_COMMON_BASE_RESIDENT_MEMORY_H_
#define BATON_COMMON_BASE_RESIDENT_MEMORY_H_

#include <sys/types.h>

#include <cstdint>

namespace baton {

// In bytes; 0 if there is no such process.
int64_t ResidentBytesOf(pid_t pid);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RESIDENT_MEMORY_H_
