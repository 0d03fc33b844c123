// The filters and the draw of one request, by one block. See sampling.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_DRAW_TOKEN_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_DRAW_TOKEN_CUH_

#include "common/backend/cuda/kernels/radix_select.cuh"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/kernels/token_order.cuh"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/philox.h"

namespace baton::backend::cuda {

// In (0, 1] as a share of 2^64, scaled to 1 .. total.
BATON_DEVICE uint64_t RandomTarget(const SampleRequest& request, uint64_t total) {
  uint32_t words[4] = {static_cast<uint32_t>(request.position),
                       static_cast<uint32_t>(request.position >> 32), request.choice, 0};
  PhiloxRounds(words, static_cast<uint32_t>(request.seed),
               static_cast<uint32_t>(request.seed >> 32));
  return MulHigh(uint64_t{words[1]} << 32 | words[0], total) + 1;
}

// ceil(x), for 0 <= x < 2^63.
BATON_DEVICE uint64_t RoundedUp(double x) {
  const auto whole = static_cast<uint64_t>(x);
  return static_cast<double>(whole) < x ? whole + 1 : whole;
}

// The part of the sum of all weights that top_p keeps.
BATON_DEVICE uint64_t KeptShare(const SampleRequest& request, uint64_t total) {
  const uint64_t share = RoundedUp(static_cast<double>(request.top_p) * static_cast<double>(total));
  return Least(Greatest(share, uint64_t{1}), total);
}
// The least weight that min_p keeps.
BATON_DEVICE uint64_t LeastWeight(const SampleRequest& request) {
  const auto least = static_cast<uint64_t>(static_cast<double>(request.min_p) * kOne);
  return Greatest(least, uint64_t{1});
}

// Of the tokens from last_kept on, the highest's place given. min_p comes behind top_p, which wants
// the weights of all; without it, min_p can come at once.
BATON_DEVICE Tally WeightsOf(const SampleRequest& request, uint64_t highest,
                             uint64_t last_kept = 0) {
  Tally weights;
  weights.weighs = true;
  weights.highest = static_cast<double>(LogitOf(highest));
  weights.scale = M_LOG2E / static_cast<double>(request.temperature);
  weights.last_kept = last_kept;
  weights.SkipBelow(request.top_p < 1 ? 1 : LeastWeight(request), request.temperature);
  return weights;
}

// The chosen token's place in the order. highest: the first place of all. total: the sum of the
// row's weights if they are in memory.first already (then no top_k holds), else 0. Tokens: a Row,
// or a TokenList of all that can be chosen or comes before that, but for whole bins that `total`
// and memory.first know.
template <class Tokens>
BATON_DEVICE uint64_t Draw(const Tokens& tokens, uint64_t highest, const SampleRequest& request,
                           uint64_t total, SelectMemory& memory) {
  uint64_t last_kept = 0;
  if (request.top_k > 0 && request.top_k < TokenCount(tokens)) {
    const Tally counts = {.last_kept = 0};
    BuildFirstDigit(tokens, counts, memory);
    last_kept = PrefixReaching(tokens, counts, static_cast<uint64_t>(request.top_k), memory).last;
  }
  Tally weights = WeightsOf(request, highest, last_kept);
  if (total == 0) total = BuildFirstDigit(tokens, weights, memory);
  if (request.top_p < 1) {
    // The histogram stays valid: the sum before a place does not depend on later places.
    const Prefix prefix = PrefixReaching(tokens, weights, KeptShare(request, total), memory);
    weights.last_kept = Greatest(weights.last_kept, prefix.last);
    total = prefix.sum;
  }
  if (request.top_p < 1 && request.min_p > 0) {  // every remaining weight is above 0
    weights.SkipBelow(LeastWeight(request), request.temperature);
    total = BuildFirstDigit(tokens, weights, memory);
  }
  return PrefixReaching(tokens, weights, RandomTarget(request, total), memory).last;
}

// Where the sum of values in a row of bins, each thread's range behind the last one's, reaches the
// target: the bin, and the sum with it.
struct Reached {
  int bin;
  uint64_t sum;
};
// REQUIRES: before < target <= before + the sum of all.
BATON_DEVICE Reached ReachTarget(const Bin* values, BinRange own, uint64_t before, uint64_t target,
                                 SelectMemory& memory) {
  const uint64_t sum = SumOf(values, own);
  before += ScanBlock(sum, memory.scan).before;
  if (before < target && target - before <= sum) {
    int bin = own.low;
    for (; ValueOf(values[bin]) < target - before; ++bin) before += ValueOf(values[bin]);
    memory.found_bin = bin;
    memory.found_before = before + ValueOf(values[bin]);
  }
  SyncThreads();
  const Reached reached = {memory.found_bin, memory.found_before};
  SyncThreads();
  return reached;
}

// Bitonic (Batcher, "Sorting networks and their applications", AFIPS 1968): the highest value
// first. size: a power of two from 2 on.
BATON_DEVICE void SortDescending(Bin* values, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      SyncThreads();
      for (int pair = ThreadIndex(); pair < size / 2; pair += BlockThreads()) {
        const int i = 2 * pair - (pair & (distance - 1));
        const uint64_t a = ValueOf(values[i]), b = ValueOf(values[i + distance]);
        const bool descends = (i & run) == 0;
        if (descends == (a < b)) {
          SetValue(values[i], b);
          SetValue(values[i + distance], a);
        }
      }
    }
  }
  SyncThreads();
}

// Sums of weights that are not listed: of what comes before the list, and of what is left out
// before its tokens of low_bin.
struct ListedSums {
  uint64_t before, gap;
  int low_bin;
};
// As Draw of a list of at most kBins tokens, 1 at least: sorted, every filter is a cut. total: of
// the row, or 0: of the list. Nothing is chosen in the gap.
BATON_DEVICE uint64_t DrawSorted(const TokenList& list, const Tally& weights,
                                 const SampleRequest& request, const ListedSums& sums,
                                 uint64_t total, SelectMemory& memory) {
  const uint64_t before = sums.before;
  const auto low_bin = static_cast<uint32_t>(sums.low_bin);
  Bin* const places = memory.first;
  Bin* const values = memory.bins;
  int size = 2;
  while (size < list.count) size *= 2;
  for (int i = 2 * ThreadIndex(); i < size; i += 2 * BlockThreads()) {
    const Vec16 v = i < list.count ? LoadFresh16(list.places + i) : Vec16{};
    SetValue(places[i], uint64_t{v.x[1]} << 32 | v.x[0]);
    SetValue(places[i + 1], i + 1 < list.count ? uint64_t{v.x[3]} << 32 | v.x[2] : 0);
  }
  SortDescending(places, size);

  const int each = (list.count + BlockThreads() - 1) / BlockThreads();
  const int low = Least(ThreadIndex() * each, list.count);
  const BinRange own = {low, Least(low + each, list.count)};
  const int kept = request.top_k > 0 ? Least(request.top_k, list.count) : list.count;
  for (int i = own.low; i < own.high; ++i) {
    const uint64_t place = ValueOf(places[i]);
    const auto key = static_cast<uint32_t>(place >> 32);
    uint64_t value = i < kept ? weights.Of(key, IdOf(place), LogitOfKey(key)) : 0;
    const bool is_low = key >> kFirstShift == low_bin;
    if (is_low && (i == 0 || places[i - 1].words[1] >> kFirstShift != low_bin)) value += sums.gap;
    SetValue(values[i], value);
  }
  if (total == 0) total = ScanBlock(SumOf(values, own), memory.scan).all;
  if (request.top_p < 1) {
    const Reached last = ReachTarget(values, own, before, KeptShare(request, total), memory);
    const uint64_t least = LeastWeight(request);
    for (int i = own.low; i < own.high; ++i) {
      if (i > last.bin || ValueOf(values[i]) < least) SetValue(values[i], 0);
    }
    total = before + ScanBlock(SumOf(values, own), memory.scan).all;
  }
  const int chosen = ReachTarget(values, own, before, RandomTarget(request, total), memory).bin;
  return ValueOf(places[chosen]);
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_DRAW_TOKEN_CUH_
