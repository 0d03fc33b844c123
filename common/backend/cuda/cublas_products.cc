#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/cublas_library.h"
#include "common/backend/cuda/products.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

// Of the operands' first elements: rows of a step's tensors begin no better aligned.
constexpr uint32_t kAlignment = 16;
// About a kilobyte each; beyond it, all are made anew.
constexpr size_t kMaxOperands = 4096;

// REQUIRES: LoadCublas() was OK.
const CublasLibrary& Cublas() { return **LoadCublas(); }

void Check(cublasStatus_t status, const char* call) {
  BATON_CHECK(status == CUBLAS_STATUS_SUCCESS) << call << ": " << Cublas().status_string(status);
}

struct Destroy {
  void operator()(cublasLtMatrixLayout_t object) const { Cublas().layout_destroy(object); }
  void operator()(cublasLtMatmulDesc_t object) const { Cublas().desc_destroy(object); }
  void operator()(cublasLtMatmulPreference_t object) const { Cublas().preference_destroy(object); }
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, Destroy>;
using Description = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Destroy>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, Destroy>;

Layout MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(Cublas().layout_create(&layout, type, static_cast<uint64_t>(rows),
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
  ~CublasProducts() override { Cublas().destroy(handle_); }

  size_t WorkspaceBytes() const override { return kCublasWorkspaceBytes; }
  void SetWorkspace(void* device) override { workspace_ = device; }

  bool MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) override {
    const Operands& operands = OperandsOf(launch, dtype);
    const auto bucket = static_cast<int>(std::bit_ceil(static_cast<unsigned>(launch.rows)));
    const Key key = {launch.rows, launch.n, launch.k, dtype, launch.bias != nullptr};
    auto exact = of_rows_.find(key);
    if (exact == of_rows_.end()) {
      const Algorithm& algorithm = OfBucket(launch, dtype, bucket);
      if (algorithm && Run(operands, *algorithm, launch, stream)) return true;
      // What serves the bucket's largest need not serve this one.
      exact = of_rows_.emplace(key, launch.rows == bucket ? std::nullopt : Find(operands)).first;
    }
    if (exact->second && Run(operands, *exact->second, launch, stream)) return true;
    exact->second.reset();
    if (told_.emplace(launch.n, launch.k).second) {
      BATON_LOG(Warning) << "cuBLASLt has no algorithm for " << launch.rows << " x " << launch.k
                         << " times " << launch.k << " x " << launch.n << " in " << Name(dtype)
                         << ": such products take the deterministic kernels, which are slower";
    }
    return false;
  }

 private:
  using Algorithm = std::optional<cublasLtMatmulAlgo_t>;
  // Rows, n, k, and whether there is a bias.
  using Key = std::tuple<int, int, int, DType, bool>;
  // Rows, n, k, strides of x and of out, and the bias.
  using Shape = std::tuple<int, int, int, DType, int64_t, int64_t, const float*>;

  // False if the algorithm serves no such product: nothing was enqueued.
  bool Run(const Operands& operands, const cublasLtMatmulAlgo_t& algorithm,
           const MatMulLaunch& launch, Stream stream) const {
    const float one = 1, zero = 0;
    const cublasStatus_t status = Cublas().matmul(
        handle_, operands.description.get(), &one, launch.w, operands.w.get(), launch.x,
        operands.x.get(), &zero, launch.out, operands.out.get(), launch.out, operands.out.get(),
        &algorithm, workspace_, kCublasWorkspaceBytes, static_cast<cudaStream_t>(stream));
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    Check(status, "cublasLtMatmul");
    return true;
  }

  // Valid until the next call.
  const Operands& OperandsOf(const MatMulLaunch& launch, DType dtype) {
    const Shape shape = {launch.rows,     launch.n,          launch.k,   dtype,
                         launch.x_stride, launch.out_stride, launch.bias};
    auto found = operands_.find(shape);
    if (found == operands_.end()) {
      if (operands_.size() == kMaxOperands) operands_.clear();
      found = operands_.emplace(shape, Describe(launch, dtype)).first;
    }
    return found->second;
  }

  const Algorithm& OfBucket(const MatMulLaunch& launch, DType dtype, int bucket) {
    const Key key = {bucket, launch.n, launch.k, dtype, launch.bias != nullptr};
    auto found = of_buckets_.find(key);
    if (found == of_buckets_.end()) {
      MatMulLaunch largest = launch;
      largest.rows = bucket;
      found = of_buckets_.emplace(key, Find(Describe(largest, dtype))).first;
    }
    return found->second;
  }

  static Operands Describe(const MatMulLaunch& launch, DType dtype) {
    const cudaDataType_t type = dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
    Operands operands;
    cublasLtMatmulDesc_t description = nullptr;
    Check(Cublas().desc_create(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
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
    Check(Cublas().desc_set(description, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  template <class T>
  static void SetPreference(cublasLtMatmulPreference_t preference,
                            cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    Check(Cublas().preference_set(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  }

  Algorithm Find(const Operands& operands) const {
    cublasLtMatmulPreference_t made = nullptr;
    Check(Cublas().preference_create(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    SetPreference(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kCublasWorkspaceBytes);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      SetPreference(made, attribute, kAlignment);
    }
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    const cublasStatus_t status = Cublas().get_heuristic(
        handle_, operands.description.get(), operands.w.get(), operands.x.get(), operands.out.get(),
        operands.out.get(), made, 1, &result, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
    Check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (count == 0) return std::nullopt;
    return result.algo;
  }

  const cublasLtHandle_t handle_;
  void* workspace_ = nullptr;
  std::map<Key, Algorithm> of_buckets_;
  std::map<Key, Algorithm> of_rows_;  // that their bucket's does not serve; none: ours do
  std::map<Shape, Operands> operands_;
  std::set<std::pair<int, int>> told_;  // (n, k)
};

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> MakeCublasProducts() {
  BATON_ASSIGN_OR_RETURN(const CublasLibrary* const library, LoadCublas());
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = library->create(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CUBLAS",
                     absl::StrCat("cublasLtCreate: ", library->status_string(status)));
  }
  return std::make_unique<CublasProducts>(handle);
}

}  // namespace baton::backend::cuda
