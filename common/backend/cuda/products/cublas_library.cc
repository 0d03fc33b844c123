#include "common/backend/cuda/products/cublas_library.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::backend::cuda {
namespace {

// Where the loader looks by itself, then where the toolkit's packages put it.
constexpr const char* kCublasPlaces[] = {"libcublasLt.so.13",
                                         "/usr/local/cuda/lib64/libcublasLt.so.13",
                                         "/usr/local/cuda-13/lib64/libcublasLt.so.13"};

absl::Status Failed(const std::string& what) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "CUBLAS",
      absl::StrCat(what,
                   ": expected cuBLASLt of CUDA 13 where the loader finds it "
                   "(LD_LIBRARY_PATH), or --deterministic (the default), which needs none"));
}

absl::StatusOr<const CublasLibrary*> FindCublas() {
  void* handle = nullptr;
  std::string errors;
  for (const char* place : kCublasPlaces) {
    handle = dlopen(place, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", dlerror());
  }
  if (handle == nullptr) return Failed(errors);
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  };
  static CublasLibrary library;
  find("cublasLtCreate", library.create);
  find("cublasLtDestroy", library.destroy);
  find("cublasLtGetStatusString", library.status_string);
  find("cublasLtGetVersion", library.version);
  find("cublasLtMatmul", library.matmul);
  find("cublasLtMatmulAlgoCheck", library.check);
  find("cublasLtMatmulAlgoGetHeuristic", library.get_heuristic);
  find("cublasLtMatmulDescCreate", library.desc_create);
  find("cublasLtMatmulDescDestroy", library.desc_destroy);
  find("cublasLtMatmulDescSetAttribute", library.desc_set);
  find("cublasLtMatmulPreferenceCreate", library.preference_create);
  find("cublasLtMatmulPreferenceDestroy", library.preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", library.preference_set);
  find("cublasLtMatrixLayoutCreate", library.layout_create);
  find("cublasLtMatrixLayoutDestroy", library.layout_destroy);
  if (!missing.empty()) return Failed(absl::StrCat("libcublasLt.so.13 lacks ", missing));
  return &library;
}

}  // namespace

absl::StatusOr<const CublasLibrary*> LoadCublas() {
  static const auto* const loaded = new absl::StatusOr<const CublasLibrary*>(FindCublas());
  return *loaded;
}

}  // namespace baton::backend::cuda
