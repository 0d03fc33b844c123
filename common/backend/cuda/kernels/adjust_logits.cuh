// model::AdjustLogits on a request's copy of a row, operation by operation.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ADJUST_LOGITS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ADJUST_LOGITS_CUH_

#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr float kMaskedLogit = -__builtin_huge_valf();
// Of `seen`: in the prompt or the answer; the rest counts how often in the answer.
inline constexpr uint32_t kSeenInPrompt = 0x80000000u;

// Double arithmetic with one rounding at the end; a finite logit stays finite.
BATON_DEVICE float RoundedLogit(double logit) {
  constexpr double kMax = 3.40282346638528859812e38;
  return static_cast<float>(logit < -kMax ? -kMax : kMax < logit ? kMax : logit);
}

BATON_DEVICE float Penalized(float raw, const SampleRequest& request, uint32_t count) {
  if (raw == kMaskedLogit) return raw;
  double logit = static_cast<double>(raw);
  if (logit > 0) {
    logit /= static_cast<double>(request.repetition_penalty);
  } else {
    logit *= static_cast<double>(request.repetition_penalty);
  }
  logit -= static_cast<double>(request.frequency_penalty) * count;
  if (count > 0) logit -= static_cast<double>(request.presence_penalty);
  return RoundedLogit(logit);
}

// The ids that a block changes; other blocks change the others.
struct IdRange {
  uint32_t begin, end;
  BATON_DEVICE bool Has(uint32_t id) const { return id - begin < end - begin; }
};

BATON_DEVICE void Penalize(const SampleLaunch& launch, const SampleRequest& request, IdRange range,
                           float* row) {
  const int threads = BlockThreads();
  uint32_t* seen = launch.seen + request.workspace_row * launch.workspace_stride;
  const int32_t* ids = launch.ids + request.first_token;
  // Several threads may write the same value.
  for (int i = ThreadIndex(); i < request.prompt_tokens; i += threads) {
    const auto id = static_cast<uint32_t>(LoadGlobal(ids + i));
    if (range.Has(id)) StoreGlobal(seen + id, kSeenInPrompt);
  }
  SyncThreads();
  for (int i = request.prompt_tokens + ThreadIndex(); i < request.token_count; i += threads) {
    const auto id = static_cast<uint32_t>(LoadGlobal(ids + i));
    if (range.Has(id)) AtomicAdd(&seen[id], 1u);
  }
  if (request.drawn_row >= 0 && ThreadIndex() == 0) {
    const auto id = static_cast<uint32_t>(LoadGlobal(launch.input_tokens + request.drawn_row));
    if (range.Has(id)) AtomicAdd(&seen[id], 1u);
  }
  SyncThreads();
  for (uint32_t id = range.begin + static_cast<uint32_t>(ThreadIndex()); id < range.end;
       id += static_cast<uint32_t>(threads)) {
    const uint32_t times = LoadGlobal(seen + id);
    if (times == 0) continue;
    StoreGlobal(row + id, Penalized(LoadGlobal(row + id), request, times & ~kSeenInPrompt));
    StoreGlobal(seen + id, 0u);
  }
  SyncThreads();
}

// By all threads together, in one part of the row; the parts don't depend on each other. A logit
// that is NaN or +inf affects no other. REQUIRES: all threads' writes to that part are behind
// a SyncThreads().
BATON_DEVICE void AdjustLogits(const SampleLaunch& launch, const SampleRequest& request,
                               IdRange range, float* row) {
  for (int i = ThreadIndex(); i < request.bias_count; i += BlockThreads()) {
    const TokenBias bias = LoadGlobal(launch.biases + request.first_bias + i);
    if (!range.Has(static_cast<uint32_t>(bias.id))) continue;
    const float logit = LoadGlobal(row + bias.id);
    if (logit == kMaskedLogit) continue;
    StoreGlobal(row + bias.id,
                RoundedLogit(static_cast<double>(logit) + static_cast<double>(bias.bias)));
  }
  SyncThreads();
  const bool penalizes = request.repetition_penalty != 1 || request.frequency_penalty != 0 ||
                         request.presence_penalty != 0;
  if (penalizes && (request.token_count > 0 || request.drawn_row >= 0))
    Penalize(launch, request, range, row);
  for (int i = ThreadIndex(); i < request.suppressed_count; i += BlockThreads()) {
    const auto id = static_cast<uint32_t>(LoadGlobal(launch.ids + request.first_suppressed + i));
    if (range.Has(id)) StoreGlobal(row + id, kMaskedLogit);
  }
  SyncThreads();
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ADJUST_LOGITS_CUH_
