// The filters and the draw of one request, by one block. See sampling.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_DRAW_TOKEN_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_DRAW_TOKEN_CUH_

#include "common/backend/cuda/kernels/logit_bins.cuh"
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

// Of the tokens up to the place `last`; 0: of all. min_p comes behind top_p, which wants the
// weights of all; without it, min_p can come at once.
BATON_DEVICE Tally WeightsOf(const SampleRequest& request, float highest, uint64_t last) {
  Tally weights;
  weights.weighs = true;
  weights.highest = highest;
  weights.scale = -kExp2TableSize * (M_LOG2E / static_cast<double>(request.temperature));
  if (last != 0) weights.EndAt(last);
  weights.SkipBelow(request.top_p < 1 ? 1 : LeastWeight(request), request.temperature);
  return weights;
}

// The place of the token that is chosen from a whole row: some ten passes.
BATON_DEVICE uint64_t Draw(const Row& row, float highest, const SampleRequest& request,
                           SelectMemory& memory) {
  uint64_t last = 0;
  if (request.top_k > 0 && request.top_k < row.size) {
    const Tally counts;
    BuildFirstDigit(row, counts, memory);
    last = PrefixReaching(row, counts, static_cast<uint64_t>(request.top_k), memory).last;
  }
  Tally weights = WeightsOf(request, highest, last);
  uint64_t total = BuildFirstDigit(row, weights, memory);
  if (request.top_p < 1) {
    // The histogram stays valid: the sum before a place does not depend on later places.
    const Prefix prefix = PrefixReaching(row, weights, KeptShare(request, total), memory);
    weights.EndAt(prefix.last);
    total = prefix.sum;
  }
  if (request.top_p < 1 && request.min_p > 0) {  // every remaining weight is above 0
    weights.SkipBelow(LeastWeight(request), request.temperature);
    total = BuildFirstDigit(row, weights, memory);
  }
  return PrefixReaching(row, weights, RandomTarget(request, total), memory).last;
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

// A warp's share of a sort that it does in registers: two values a lane.
constexpr int kWarpValues = 2 * kWarpLanes;

// The steps of a bitonic sort, from run `first` to run `last`, whose pairs are within kWarpValues.
BATON_DEVICE void SortWithinWarps(Bin* values, int size, int first, int last) {
  const auto half = [](uint64_t mine, uint64_t other, bool greater) {
    return greater == (mine < other) ? other : mine;
  };
  for (int at = Warp() * kWarpValues; at < size; at += 2 * BlockThreads()) {
    const int i = at + Lane();
    uint64_t a = ValueOf(values[i]), b = ValueOf(values[i + kWarpLanes]);
    for (int run = first; run <= last; run *= 2) {
      const bool a_descends = (i & run) == 0, b_descends = ((i + kWarpLanes) & run) == 0;
      if (run > kWarpLanes && a_descends == (a < b)) {
        const uint64_t other = a;
        a = b;
        b = other;
      }
      for (int distance = Least(run, kWarpLanes) / 2; distance > 0; distance /= 2) {
        const bool is_first = (Lane() & distance) == 0;
        a = half(a, ShuffleXor(a, distance), a_descends == is_first);
        b = half(b, ShuffleXor(b, distance), b_descends == is_first);
      }
    }
    SetValue(values[i], a);
    SetValue(values[i + kWarpLanes], b);
  }
}

// Bitonic (Batcher, "Sorting networks and their applications", AFIPS 1968): the highest value
// first. size: a power of two from kWarpValues on. By all threads, behind a SyncThreads().
BATON_DEVICE void SortDescending(Bin* values, int size) {
  SortWithinWarps(values, size, 2, kWarpValues);
  for (int run = 2 * kWarpValues; run <= size; run *= 2) {
    for (int distance = run / 2; distance > kWarpLanes; distance /= 2) {
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
    SyncThreads();
    SortWithinWarps(values, size, run, run);
  }
  SyncThreads();
}

// To memory.first: `count` places that other blocks listed, 1 to kMaxSortedTokens, sorted.
BATON_DEVICE void SortPlaces(const uint64_t* places, int count, SelectMemory& memory) {
  int size = kWarpValues;
  while (size < count) size *= 2;
  for (int i = 2 * ThreadIndex(); i < size; i += 2 * BlockThreads()) {
    const Vec16 v = i < count ? LoadFresh16(places + i) : Vec16{};
    SetValue(memory.first[i], uint64_t{v.x[1]} << 32 | v.x[0]);
    SetValue(memory.first[i + 1], i + 1 < count ? uint64_t{v.x[3]} << 32 | v.x[2] : 0);
  }
  SyncThreads();
  SortDescending(memory.first, size);
}

// Sums of weights that are not listed: of what comes before the list, and of what is left out
// before its tokens of low_bin. `total`: of the row, or 0: of the list.
struct ListedSums {
  uint64_t before, gap, total;
  int low_bin;
};
// Of `count` places in memory.first, sorted, every filter is a cut. They are all that can be chosen
// but for what filters drop, and nothing in the gap is. top_k: 0: it left its mark on `weights`.
BATON_DEVICE uint64_t DrawSorted(int count, const Tally& weights, const LogitBins& bins, int top_k,
                                 const SampleRequest& request, const ListedSums& sums,
                                 SelectMemory& memory) {
  const uint64_t before = sums.before;
  const Bin* const places = memory.first;
  Bin* const values = memory.bins;
  const auto is_low = [&](int i) { return bins.Of(LogitOf(ValueOf(places[i]))) == sums.low_bin; };
  const int each = (count + BlockThreads() - 1) / BlockThreads();
  const int low = Least(ThreadIndex() * each, count);
  const BinRange own = {low, Least(low + each, count)};
  const int kept = top_k > 0 ? Least(top_k, count) : count;
  for (int i = own.low; i < own.high; ++i) {
    uint64_t value = i < kept ? weights.Of(LogitOf(ValueOf(places[i]))) : 0;
    if (sums.gap != 0 && is_low(i) && (i == 0 || !is_low(i - 1))) value += sums.gap;
    SetValue(values[i], value);
  }
  const uint64_t through = before + ScanBlock(SumOf(values, own), memory.scan).all;
  uint64_t total = sums.total == 0 ? through : sums.total;
  if (request.top_p < 1) {
    // Where min_p drops all from before the place that top_p reaches, that place is not listed.
    const uint64_t share = Least(KeptShare(request, total), through);
    const Reached last = ReachTarget(values, own, before, share, memory);
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
