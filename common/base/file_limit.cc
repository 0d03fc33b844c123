#include "common/base/file_limit.h"

#include <sys/resource.h>

namespace baton {

void RaiseFileLimit() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);  // else it stays as it was
}

}  // namespace baton
