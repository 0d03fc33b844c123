// model::AdjustLogits, operation by operation, on copies of those quads of a row that a request
// changes: most requests that change logits change a few hundred of them.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ADJUST_LOGITS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ADJUST_LOGITS_CUH_

#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/kernels/token_order.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr float kMaskedLogit = -kInfiniteLogit;
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

// A request's rows of the workspace.
struct AdjustedRow {
  float* logits;
  uint8_t* quads;  // 1: the quad is in `logits`; else 0
  uint32_t* seen;
};
BATON_DEVICE AdjustedRow AdjustedRowOf(const SampleLaunch& launch, const SampleRequest& request) {
  const int64_t first = request.workspace_row * launch.workspace_stride;
  return {launch.adjusted + first, launch.adjusted_quads + first / 4, launch.seen + first};
}

// The ids of a part of the row, which one block changes.
struct IdRange {
  uint32_t begin, end;
  BATON_DEVICE bool Has(uint32_t id) const { return id - begin < end - begin; }
};
BATON_DEVICE IdRange IdsOf(const Row& row) {
  return {static_cast<uint32_t>(row.begin), static_cast<uint32_t>(row.size)};
}

// body(id) for all ids that the request changes, some of them several times, and ids that are none.
template <class Body>
BATON_DEVICE void ForChangedIds(const SampleLaunch& launch, const SampleRequest& request,
                                const Body& body) {
  for (int i = ThreadIndex(); i < request.bias_count; i += BlockThreads()) {
    body(static_cast<uint32_t>(LoadGlobal(&launch.biases[request.first_bias + i].id)));
  }
  for (int i = ThreadIndex(); i < request.token_count; i += BlockThreads()) {
    body(static_cast<uint32_t>(LoadGlobal(launch.ids + request.first_token + i)));
  }
  for (int i = ThreadIndex(); i < request.suppressed_count; i += BlockThreads()) {
    body(static_cast<uint32_t>(LoadGlobal(launch.ids + request.first_suppressed + i)));
  }
  if (request.drawn_row >= 0 && ThreadIndex() == 0) {
    body(static_cast<uint32_t>(LoadGlobal(launch.input_tokens + request.drawn_row)));
  }
}

// Penalises what was seen, and counts nothing as seen.
BATON_DEVICE void Penalize(const SampleRequest& request, IdRange range, const AdjustedRow& row) {
  for (uint32_t id = range.begin + static_cast<uint32_t>(ThreadIndex()); id < range.end;
       id += static_cast<uint32_t>(BlockThreads())) {
    if (LoadGlobal(row.quads + id / 4) == 0) continue;
    const uint32_t times = LoadGlobal(row.seen + id);
    if (times == 0) continue;
    StoreGlobal(row.logits + id,
                Penalized(LoadGlobal(row.logits + id), request, times & ~kSeenInPrompt));
    StoreGlobal(row.seen + id, 0u);
  }
}

// By all threads together, for one part of the row; the parts don't depend on each other. A logit
// that is NaN or +inf affects no other. Several threads may write the same value.
BATON_DEVICE void AdjustLogits(const SampleLaunch& launch, const SampleRequest& request,
                               const Row& raw, const AdjustedRow& row) {
  const int threads = BlockThreads();
  const IdRange range = IdsOf(raw);
  const int32_t* ids = launch.ids + request.first_token;
  ForChangedIds(launch, request, [&](uint32_t id) {
    if (!range.Has(id)) return;
    Store16(row.logits + id / 4 * 4, LoadFresh16(raw.logits + id / 4 * 4));
    StoreGlobal(row.quads + id / 4, uint8_t{1});
  });
  for (int i = ThreadIndex(); i < request.prompt_tokens; i += threads) {
    const auto id = static_cast<uint32_t>(LoadGlobal(ids + i));
    if (range.Has(id)) StoreGlobal(row.seen + id, kSeenInPrompt);
  }
  SyncThreads();
  for (int i = request.prompt_tokens + ThreadIndex(); i < request.token_count; i += threads) {
    const auto id = static_cast<uint32_t>(LoadGlobal(ids + i));
    if (range.Has(id)) AtomicAdd(row.seen + id, 1u);
  }
  if (request.drawn_row >= 0 && ThreadIndex() == 0) {
    const auto id = static_cast<uint32_t>(LoadGlobal(launch.input_tokens + request.drawn_row));
    if (range.Has(id)) AtomicAdd(row.seen + id, 1u);
  }
  for (int i = ThreadIndex(); i < request.bias_count; i += threads) {
    const TokenBias bias = LoadGlobal(launch.biases + request.first_bias + i);
    if (!range.Has(static_cast<uint32_t>(bias.id))) continue;
    const float logit = LoadGlobal(row.logits + bias.id);
    if (logit == kMaskedLogit) continue;
    StoreGlobal(row.logits + bias.id,
                RoundedLogit(static_cast<double>(logit) + static_cast<double>(bias.bias)));
  }
  SyncThreads();
  if (request.token_count > 0 || request.drawn_row >= 0) {
    Penalize(request, range, row);
    SyncThreads();
  }
  for (int i = ThreadIndex(); i < request.suppressed_count; i += threads) {
    const auto id = static_cast<uint32_t>(LoadGlobal(launch.ids + request.first_suppressed + i));
    if (range.Has(id)) StoreGlobal(row.logits + id, kMaskedLogit);
  }
  SyncThreads();
}

// Makes all of the row's quads the unchanged ones again. By all threads of one block, when no other
// reads them any more.
BATON_DEVICE void ForgetChanges(const SampleLaunch& launch, const SampleRequest& request) {
  const IdRange range = {0, static_cast<uint32_t>(launch.vocab)};
  uint8_t* const quads = AdjustedRowOf(launch, request).quads;
  ForChangedIds(launch, request, [&](uint32_t id) {
    if (range.Has(id)) StoreGlobal(quads + id / 4, uint8_t{0});
  });
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ADJUST_LOGITS_CUH_
