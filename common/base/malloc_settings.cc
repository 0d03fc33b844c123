#include "common/base/malloc_settings.h"

#include <malloc.h>

namespace baton {

void KeepFreedMemory() {
#if defined(__GLIBC__)
  mallopt(M_TRIM_THRESHOLD, 32 << 20);
  mallopt(M_MMAP_THRESHOLD, 8 << 20);  // above gRPC's largest read of 4 MiB
#endif
}

}  // namespace baton
