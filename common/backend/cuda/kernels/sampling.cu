#include "common/backend/cuda/kernels/adjust_logits.cuh"
#include "common/backend/cuda/kernels/radix_select.cuh"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/kernels/token_order.cuh"
#include "common/backend/philox.h"

namespace baton::backend::cuda {
namespace {

constexpr int kMaxThreads = 1024;

// In (0, 1] as a share of 2^64, scaled to 1 .. total.
BATON_DEVICE uint64_t RandomTarget(const SampleRequest& request, uint64_t total) {
  uint32_t words[4] = {static_cast<uint32_t>(request.position),
                       static_cast<uint32_t>(request.position >> 32), request.choice, 0};
  PhiloxRounds(words, static_cast<uint32_t>(request.seed),
               static_cast<uint32_t>(request.seed >> 32));
  return MulHigh(uint64_t{words[1]} << 32 | words[0], total) + 1;
}

// The least whole number that is not below x, of 0 <= x < 2^63.
BATON_DEVICE uint64_t RoundedUp(double x) {
  const auto whole = static_cast<uint64_t>(x);
  return static_cast<double>(whole) < x ? whole + 1 : whole;
}

// The place in the order of the token that the filters and the random number choose.
BATON_DEVICE uint64_t Draw(const Row& row, uint64_t highest, const SampleRequest& request,
                           SelectMemory& memory) {
  uint64_t last_kept = 0;
  if (request.top_k > 0 && request.top_k < row.size) {
    const Tally counts = {.last_kept = 0};
    BuildFirstDigit(row, counts, memory);
    last_kept = PrefixReaching(row, counts, static_cast<uint64_t>(request.top_k), memory).last;
  }
  Tally weights;
  weights.weighs = true;
  weights.highest = static_cast<double>(LogitOf(highest));
  weights.scale = M_LOG2E / static_cast<double>(request.temperature);
  weights.last_kept = last_kept;
  weights.SkipBelow(1);
  uint64_t total = BuildFirstDigit(row, weights, memory);
  if (request.top_p < 1) {
    const uint64_t share =
        RoundedUp(static_cast<double>(request.top_p) * static_cast<double>(total));
    const uint64_t target = Least(Greatest(share, uint64_t{1}), total);
    // The histogram stays: what comes before a place does not depend on what comes behind.
    const Prefix prefix = PrefixReaching(row, weights, target, memory);
    weights.last_kept = Greatest(weights.last_kept, prefix.last);
    total = prefix.sum;
  }
  const auto least = static_cast<uint64_t>(static_cast<double>(request.min_p) * kOne);
  if (least > 1) {  // all that is left weighs something
    weights.SkipBelow(least);
    total = BuildFirstDigit(row, weights, memory);
  }
  return PrefixReaching(row, weights, RandomTarget(request, total), memory).last;
}

BATON_KERNEL(kMaxThreads)
SampleKernel(SampleLaunch launch) {
  const SampleRequest& request = launch.requests[BlockIndex().x];
  SampleResult& result = launch.results[BlockIndex().x];
  auto& memory = *reinterpret_cast<SelectMemory*>(SharedMemory());
  Row row = {launch.logits + request.logit_row * launch.logits_stride, launch.vocab};
  const bool changes = request.workspace_row >= 0;
  float* copy =
      changes ? launch.adjusted + request.workspace_row * launch.workspace_stride : nullptr;

  Inspected inspected = Inspect(row, copy, memory.scan);
  if (inspected.first_bad >= 0 || inspected.highest == 0) {
    if (ThreadIndex() == 0) {
      const float bad = inspected.first_bad >= 0 ? row.logits[inspected.first_bad] : 0.0f;
      result = {kSampledNonFinite, inspected.first_bad, bad};
    }
    return;
  }
  if (changes) {
    AdjustLogits(launch, request, copy);
    row.logits = copy;
    inspected = Inspect(row, nullptr, memory.scan);
    if (inspected.highest == 0) {
      if (ThreadIndex() == 0) result = {kSampledNoTokenLeft, 0, 0};
      return;
    }
  }
  const bool greedy = request.temperature == 0 || request.top_k == 1;
  const uint64_t place = greedy ? inspected.highest : Draw(row, inspected.highest, request, memory);
  if (ThreadIndex() == 0) result = {kSampledToken, IdOf(place), 0};
}

}  // namespace

void LaunchSample(const SampleLaunch& launch, int requests, int threads, Stream stream) {
  if (requests == 0) return;
  Launch(SampleKernel, {static_cast<unsigned>(requests), 1, 1}, threads, sizeof(SelectMemory),
         stream, launch);
}

void LaunchSample(const SampleLaunch& launch, int requests, Stream stream) {
  // 16 logits a thread fill a pass's loads.
  int threads = kWarpLanes;
  while (threads < kMaxThreads && threads * 16 < launch.vocab) threads *= 2;
  LaunchSample(launch, requests, threads, stream);
}

}  // namespace baton::backend::cuda
