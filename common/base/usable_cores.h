// How many cores a process may use.
#ifndef BATON_COMMON_BASE_USABLE_CORES_H_
#define BATON_COMMON_BASE_USABLE_CORES_H_

#include <string>

namespace baton {

// Cores that this process may use, at least 1: its affinity and the container's quota, which is in
// the control group's directory. A part of a core counts as one.
//
// `cgroups` is where control groups are mounted. Version 2 has cpu.max there; version 1 has
// cpu.cfs_quota_us and cpu.cfs_period_us in cpu/ or cpu,cpuacct/.
int UsableCores(const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace baton

#endif  // BATON_COMMON_BASE_USABLE_CORES_H_
