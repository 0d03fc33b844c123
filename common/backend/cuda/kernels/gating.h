// What turns the product of gate and up into the input of the down projection.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_GATING_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_GATING_H_

namespace baton::backend::cuda {

// activation(gate) * up * scale or, without a gate, activation(up) * scale, for silu(x) = x / (1 +
// e^-x), gelu(x) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3): Hendrycks and Gimpel,
// arXiv 1606.08415; or gpt-oss's form of SwiGLU, as backend.h says, or the squared ReLU. Its
// GatedArgs for kernels, which do not include it.
enum class GateKind : int { kSilu, kGeluTanh, kClampedSwiglu, kSquaredRelu };
inline constexpr int kGateKinds = 4;
struct Gating {
  GateKind kind = GateKind::kSilu;
  float scale = 1;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_GATING_H_
