// A libcublasLt.so.13 that multiplies on the host: the functions that cublas_library.h calls, with
// as much of their contract as can be checked. Five algorithms; what they take and refuse:
//   0, 1, 2: anything; 3: NOT_SUPPORTED for an odd number of rows; 4: wants a workspace of 64 MiB.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr uint64_t kMark = 0xba70'0b1a'5000'0013;
constexpr int kAlgorithms = 5;
constexpr size_t kLargeWorkspace = size_t{64} << 20;

struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t stride;
};
struct Description {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type = CUDA_R_16F;
  const float* bias = nullptr;
};
struct Preference {
  size_t workspace = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

Layout& Of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }
Description& Of(cublasLtMatmulDesc_t desc) { return *reinterpret_cast<Description*>(desc); }
Preference& Of(cublasLtMatmulPreference_t preference) {
  return *reinterpret_cast<Preference*>(preference);
}

template <class T>
cublasStatus_t Set(T& to, const void* value, size_t size) {
  if (size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

// Aᵀ B with 16-bit A [k, n] and B [k, m], D [n, m] f32, and perhaps a bias of f32.
bool IsProduct(const Description& desc, const Layout& a, const Layout& b, const Layout& c,
               const Layout& d) {
  return desc.transpose_a == CUBLAS_OP_T && (a.type == CUDA_R_16F || a.type == CUDA_R_16BF) &&
         b.type == a.type && d.type == CUDA_R_32F && c.type == d.type && a.rows == b.rows &&
         d.rows == a.columns && d.columns == b.columns && c.rows == d.rows &&
         c.columns == d.columns && a.stride >= static_cast<int64_t>(a.rows) &&
         b.stride >= static_cast<int64_t>(b.rows) && d.stride >= static_cast<int64_t>(d.rows) &&
         (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
          (desc.epilogue == CUBLASLT_EPILOGUE_BIAS && desc.bias_type == CUDA_R_32F &&
           desc.bias != nullptr));
}

cublasStatus_t Judge(const cublasLtMatmulAlgo_t& algorithm, const Layout& b, size_t* workspace) {
  for (int i = 2; i < 8; ++i) {
    if (algorithm.data[i] != 0) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithm.data[0] != kMark || algorithm.data[1] >= kAlgorithms) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *workspace = algorithm.data[1] == 4 ? kLargeWorkspace : 0;
  return algorithm.data[1] == 3 && b.columns % 2 == 1 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                      : CUBLAS_STATUS_SUCCESS;
}

double Value(const void* matrix, cudaDataType type, int64_t index) {
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(matrix)[index]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(matrix)[index]);
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "a fake status"; }
size_t cublasLtGetVersion() { return 139999; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &Of(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &Of(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(Of(desc).transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(Of(desc).epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Set(Of(desc).bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(Of(desc).bias, value, size);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &Of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  Preference& to = Of(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(to.workspace, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(to.alignments[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(to.alignments[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(to.alignments[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(to.alignments[3], value, size);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  *count = 0;
  if (!IsProduct(Of(desc), Of(a), Of(b), Of(c), Of(d))) return CUBLAS_STATUS_INVALID_VALUE;
  for (const uint32_t alignment : Of(preference).alignments) {
    if (alignment != 16) return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (int id = 0; id < kAlgorithms && *count < most; ++id) {
    cublasLtMatmulHeuristicResult_t result = {};
    result.algo.data[0] = kMark;
    result.algo.data[1] = static_cast<uint64_t>(id);
    result.state = Judge(result.algo, Of(b), &result.workspaceSize);
    // As the documentation has it, some that are named may be of no use.
    if (result.workspaceSize > Of(preference).workspace) continue;
    results[(*count)++] = result;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!IsProduct(Of(desc), Of(a), Of(b), Of(c), Of(d))) return CUBLAS_STATUS_INVALID_VALUE;
  *result = {};
  result->algo = *algorithm;
  result->state = Judge(*algorithm, Of(b), &result->workspaceSize);
  return result->state;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t) {
  const Layout &la = Of(a_layout), &lb = Of(b_layout), &ld = Of(d_layout);
  if (!IsProduct(Of(desc), la, lb, Of(c_layout), ld)) return CUBLAS_STATUS_INVALID_VALUE;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0 || c != d) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!Aligned(a) || !Aligned(b) || !Aligned(d) || workspace == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  size_t needed = 0;
  if (const cublasStatus_t status = Judge(*algorithm, lb, &needed);
      status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  if (needed > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  for (int64_t column = 0; column < static_cast<int64_t>(ld.columns); ++column) {
    for (int64_t row = 0; row < static_cast<int64_t>(ld.rows); ++row) {
      double sum =
          Of(desc).epilogue == CUBLASLT_EPILOGUE_BIAS ? static_cast<double>(Of(desc).bias[row]) : 0;
      for (int64_t k = 0; k < static_cast<int64_t>(la.rows); ++k) {
        sum += Value(a, la.type, row * la.stride + k) * Value(b, lb.type, column * lb.stride + k);
      }
      static_cast<float*>(d)[column * ld.stride + row] = static_cast<float>(sum);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
