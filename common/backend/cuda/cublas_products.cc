#include <cublasLt.h>

#include <array>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/products.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::backend::cuda {
namespace {

void Check(cublasStatus_t status, const char* call) {
  BATON_CHECK(status == CUBLAS_STATUS_SUCCESS) << call << ": " << cublasLtGetStatusString(status);
}

template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T object) const { kDestroy(object); }
};
using Layout = std::unique_ptr<cublasLtMatrixLayout_t,
                               Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Description =
    std::unique_ptr<cublasLtMatmulDesc_t, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreference_t,
                    Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

Layout MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), stride),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

// Of one product: column-major, so W [n, k] row-major is Wᵀ's transpose, and out [rows, n] is
// n x rows.
struct Operands {
  Description description;
  Layout w, x, out;
};

class CublasProducts final : public Products {
 public:
  explicit CublasProducts(cublasLtHandle_t handle) : handle_(handle) {}
  ~CublasProducts() override { cublasLtDestroy(handle_); }

  size_t WorkspaceBytes() const override { return kCublasWorkspaceBytes; }
  void SetWorkspace(void* device) override { workspace_ = device; }

  bool MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) override {
    const Operands operands = Describe(launch, dtype);
    const auto bucket = std::bit_ceil(static_cast<unsigned>(launch.rows));
    const Key key = {bucket, launch.n, launch.k, dtype, launch.bias != nullptr};
    auto found = algorithms_.find(key);
    if (found == algorithms_.end()) {
      MatMulLaunch largest = launch;
      largest.rows = static_cast<int>(bucket);
      const Operands of_bucket = Describe(largest, dtype);
      found = algorithms_.emplace(key, Find(of_bucket)).first;
    }
    if (!found->second) return false;
    const float one = 1, zero = 0;
    const cublasStatus_t status = cublasLtMatmul(
        handle_, operands.description.get(), &one, launch.w, operands.w.get(), launch.x,
        operands.x.get(), &zero, launch.out, operands.out.get(), launch.out, operands.out.get(),
        &*found->second, workspace_, kCublasWorkspaceBytes, static_cast<cudaStream_t>(stream));
    // An algorithm that serves the bucket's largest but not this one: ours do, from now on.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
      found->second.reset();
      return false;
    }
    Check(status, "cublasLtMatmul");
    return true;
  }

 private:
  using Key = std::tuple<unsigned, int, int, DType, bool>;

  static Operands Describe(const MatMulLaunch& launch, DType dtype) {
    const cudaDataType_t type = dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
    Operands operands;
    cublasLtMatmulDesc_t description = nullptr;
    Check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    operands.description.reset(description);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    Set(description, CUBLASLT_MATMUL_DESC_TRANSA, transpose);
    if (launch.bias != nullptr) {
      Set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      Set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
      Set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, launch.bias);
    }
    operands.w = MakeLayout(type, launch.k, launch.n, launch.k);
    operands.x = MakeLayout(type, launch.k, launch.rows, launch.x_stride);
    operands.out = MakeLayout(CUDA_R_32F, launch.n, launch.rows, launch.out_stride);
    return operands;
  }

  template <class T>
  static void Set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                  const T& value) {
    Check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  std::optional<cublasLtMatmulAlgo_t> Find(const Operands& operands) const {
    cublasLtMatmulPreference_t made = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    const size_t workspace = kCublasWorkspaceBytes;
    Check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof(workspace)),
          "cublasLtMatmulPreferenceSetAttribute");
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, operands.description.get(), operands.w.get(), operands.x.get(), operands.out.get(),
        operands.out.get(), made, 1, &result, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) return std::nullopt;
    return result.algo;
  }

  const cublasLtHandle_t handle_;
  void* workspace_ = nullptr;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> MakeCublasProducts() {
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = cublasLtCreate(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CUBLAS",
                     absl::StrCat("cublasLtCreate: ", cublasLtGetStatusString(status)));
  }
  return std::make_unique<CublasProducts>(handle);
}

}  // namespace baton::backend::cuda
