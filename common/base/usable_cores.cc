#include "common/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

namespace baton {
namespace {

// The first number of a file; 0 if there is none, as in "max 100000".
double FirstNumberIn(const std::string& path) {
  std::ifstream file(path);
  double number = 0;
  return file >> number ? number : 0;
}

// CPU time per wall time; 0 or below: not limited.
double CoresOfQuota(const std::string& cgroups) {
  std::ifstream file(cgroups + "/cpu.max");
  double quota_us = 0, period_us = 0;
  if (file >> quota_us >> period_us && period_us > 0) return quota_us / period_us;
  for (const char* controller : {"/cpu", "/cpu,cpuacct"}) {
    const std::string version_1 = cgroups + controller + "/cpu.cfs_";
    period_us = FirstNumberIn(version_1 + "period_us");
    if (period_us > 0) return FirstNumberIn(version_1 + "quota_us") / period_us;  // -1: no quota
  }
  return 0;
}

}  // namespace

int UsableCores(const std::string& cgroups) {
  cpu_set_t set;
  int cores = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  const double quota = CoresOfQuota(cgroups);
  if (quota > 0) cores = static_cast<int>(std::min<double>(cores, quota + 0.999));
  return std::max(cores, 1);
}

}  // namespace baton
