#include "common/backend/cuda/cuda_options.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace baton::backend {

std::string DefaultCublasAlgorithms() {
  constexpr char kFile[] = "/baton/cublas_algorithms";
  // As the XDG base directory specification has it, which calls relative ones invalid.
  const char* const caches = std::getenv("XDG_CACHE_HOME");
  if (caches != nullptr && caches[0] == '/') return absl::StrCat(caches, kFile);
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.cache", kFile);
  return "";
}

}  // namespace baton::backend
