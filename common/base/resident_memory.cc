#include "common/base/resident_memory.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton {

int64_t ResidentBytesOf(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == "VmRSS:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace baton
