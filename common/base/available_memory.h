// How much memory a process may still take.
#ifndef BATON_COMMON_BASE_AVAILABLE_MEMORY_H_
#define BATON_COMMON_BASE_AVAILABLE_MEMORY_H_

#include <cstddef>
#include <string>

namespace baton {

// Bytes that this process can take before the machine is out of memory or the container is at its
// limit, which is in the control group's directory; the largest size_t if neither is known. Cached
// files count as available in both: the kernel drops them first.
//
// `cgroups` is where control groups are mounted. Version 2 has memory.max there, version 1 has
// memory/memory.limit_in_bytes. `meminfo`: /proc/meminfo.
size_t AvailableMemory(const std::string& cgroups = "/sys/fs/cgroup",
                       const std::string& meminfo = "/proc/meminfo");

}  // namespace baton

#endif  // BATON_COMMON_BASE_AVAILABLE_MEMORY_H_
