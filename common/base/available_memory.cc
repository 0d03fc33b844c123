#include "common/base/available_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>

namespace baton {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The first number of a file; nullopt if there is none, as in "max".
std::optional<size_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  size_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

size_t AvailableToMachine(const std::string& meminfo) {
  std::ifstream file(meminfo);
  std::string key, rest;
  size_t kib = 0;
  while (file >> key >> kib && std::getline(file, rest)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kUnlimited;
}

// Bytes of cached files in a control group, of its children too. tmpfs and memfd are not in it: the
// kernel cannot drop what is there.
size_t CachedFiles(const std::string& stat, const std::string& prefix) {
  std::ifstream file(stat);
  std::string key;
  size_t bytes = 0, sum = 0;
  while (file >> key >> bytes) {
    if (key == prefix + "active_file" || key == prefix + "inactive_file") sum += bytes;
  }
  return sum;
}

size_t AvailableToContainer(const std::string& cgroups) {
  std::optional<size_t> limit = NumberIn(cgroups + "/memory.max"), used;
  size_t cached = 0;
  if (limit) {
    used = NumberIn(cgroups + "/memory.current");
    cached = CachedFiles(cgroups + "/memory.stat", "");
  } else {
    limit = NumberIn(cgroups + "/memory/memory.limit_in_bytes");
    used = NumberIn(cgroups + "/memory/memory.usage_in_bytes");
    cached = CachedFiles(cgroups + "/memory/memory.stat", "total_");
  }
  if (!limit || !used) return kUnlimited;
  const size_t taken = *used - std::min(*used, cached);
  return *limit - std::min(*limit, taken);
}

}  // namespace

size_t AvailableMemory(const std::string& cgroups, const std::string& meminfo) {
  return std::min(AvailableToMachine(meminfo), AvailableToContainer(cgroups));
}

}  // namespace baton
