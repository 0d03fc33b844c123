#include "common/backend/cuda/products/cublas_products.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/products/cublas_library.h"
#include "common/backend/cuda/products/cuda_stopwatch.h"
#include "common/backend/cuda/products/measured_products.h"
#include "common/backend/cuda/products/product_library.h"
#include "common/backend/cuda/products/products.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

// The alignment of the operands' first elements: rows of a step's tensors begin no better aligned.
constexpr uint32_t kAlignment = 16;
// Each takes about a kilobyte; beyond this number, all are made anew.
constexpr size_t kMaxOperands = 4096;
// They take some 50 us at the fastest memory: a measurement's launches are enqueued meanwhile.
constexpr size_t kLeastEvictedBytes = size_t{256} << 20;
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(AlgorithmWords));

// REQUIRES: LoadCublas() was OK.
const CublasLibrary& Lt() { return **LoadCublas(); }

void Check(cublasStatus_t status, const char* call) {
  BATON_CHECK(status == CUBLAS_STATUS_SUCCESS) << call << ": " << Lt().status_string(status);
}

struct Destroy {
  void operator()(cublasLtMatrixLayout_t object) const { Lt().layout_destroy(object); }
  void operator()(cublasLtMatmulDesc_t object) const { Lt().desc_destroy(object); }
  void operator()(cublasLtMatmulPreference_t object) const { Lt().preference_destroy(object); }
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, Destroy>;
using Description = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Destroy>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, Destroy>;

Layout MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(Lt().layout_create(&layout, type, static_cast<uint64_t>(rows),
                           static_cast<uint64_t>(columns), stride),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

// The operands of one product: column-major, so W [n, k] row-major is Wᵀ's transpose, and out
// [rows, n] is n x rows.
struct Operands {
  Description description;
  Layout w, x, out;
};

class Cublas final : public ProductLibrary {
 public:
  explicit Cublas(cublasLtHandle_t handle) : handle_(handle) {}
  ~Cublas() override { Lt().destroy(handle_); }

  std::string Version() const override { return absl::StrCat("cuBLASLt ", Lt().version()); }
  size_t WorkspaceBytes() const override { return kCublasWorkspaceBytes; }
  void SetWorkspace(void* device) override { workspace_ = device; }

  std::vector<AlgorithmWords> Suggest(const MatMulLaunch& launch, DType dtype, int most) override {
    const Operands& operands = OperandsOf(launch, dtype);
    const Preference preference = MakePreference();
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int count = 0;
    const cublasStatus_t status = Lt().get_heuristic(
        handle_, operands.description.get(), operands.w.get(), operands.x.get(), operands.out.get(),
        operands.out.get(), preference.get(), most, results.data(), &count);
    std::vector<AlgorithmWords> found;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return found;
    Check(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      found.push_back(std::bit_cast<AlgorithmWords>(result.algo));
    }
    return found;
  }

  bool Accepts(const MatMulLaunch& launch, DType dtype, const AlgorithmWords& words) override {
    const Operands& operands = OperandsOf(launch, dtype);
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(words);
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status =
        Lt().check(handle_, operands.description.get(), operands.w.get(), operands.x.get(),
                   operands.out.get(), operands.out.get(), &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kCublasWorkspaceBytes;
  }

  bool Run(const MatMulLaunch& launch, DType dtype, const AlgorithmWords& words,
           Stream stream) override {
    const Operands& operands = OperandsOf(launch, dtype);
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(words);
    const float one = 1, zero = 0;
    const cublasStatus_t status = Lt().matmul(
        handle_, operands.description.get(), &one, launch.w, operands.w.get(), launch.x,
        operands.x.get(), &zero, launch.out, operands.out.get(), launch.out, operands.out.get(),
        &algorithm, workspace_, kCublasWorkspaceBytes, static_cast<cudaStream_t>(stream));
    // The algorithm was not for this launch.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH) {
      return false;
    }
    if (status == CUBLAS_STATUS_INVALID_VALUE) {
      // A file's words may come to this for fewer rows than they were accepted for.
      BATON_LOG(Warning) << "cublasLtMatmul: an algorithm is invalid for " << launch.rows << " x "
                         << launch.k << " times " << launch.k << " x " << launch.n;
      return false;
    }
    Check(status, "cublasLtMatmul");
    return true;
  }

 private:
  // Rows, n, k, strides of x and of out, and the bias.
  using Shape = std::tuple<int, int, int, DType, int64_t, int64_t, const float*>;

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

  static Operands Describe(const MatMulLaunch& launch, DType dtype) {
    const cudaDataType_t type = dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
    Operands operands;
    cublasLtMatmulDesc_t description = nullptr;
    Check(Lt().desc_create(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
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
    Check(Lt().desc_set(description, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  template <class T>
  static void SetPreference(cublasLtMatmulPreference_t preference,
                            cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    Check(Lt().preference_set(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  }

  static Preference MakePreference() {
    cublasLtMatmulPreference_t made = nullptr;
    Check(Lt().preference_create(&made), "cublasLtMatmulPreferenceCreate");
    Preference preference(made);
    SetPreference(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kCublasWorkspaceBytes);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      SetPreference(made, attribute, kAlignment);
    }
    return preference;
  }

  const cublasLtHandle_t handle_;
  void* workspace_ = nullptr;
  std::map<Shape, Operands> operands_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProductLibrary>> MakeCublas() {
  BATON_ASSIGN_OR_RETURN(const CublasLibrary* const library, LoadCublas());
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = library->create(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CUBLAS",
                     absl::StrCat("cublasLtCreate: ", library->status_string(status)));
  }
  return std::make_unique<Cublas>(handle);
}

absl::StatusOr<std::unique_ptr<Products>> MakeCublasProducts(const DeviceProperties& device,
                                                             int index,
                                                             const std::string& choices_file) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<ProductLibrary> library, MakeCublas());
  MeasuredProductsOptions options;
  options.device = TimedDevice(device);
  options.file = choices_file;
  options.evict_bytes = std::max(2 * device.l2_bytes, kLeastEvictedBytes);
  return std::make_unique<MeasuredProducts>(std::move(library), MakeCudaStopwatch(index),
                                            std::move(options));
}

}  // namespace baton::backend::cuda
