// Finds how far along the order of tokens a sum of counts or weights reaches a target. See
// sampling.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_RADIX_SELECT_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_RADIX_SELECT_CUH_

#include "common/backend/cuda/kernels/token_order.cuh"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/exp_log.h"

namespace baton::backend::cuda {

// A key's digits, from the top: 11, 11 and 10 bits. An id's, for ids below 2^22: 11 and 11.
inline constexpr int kDigitBits = 11;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kFirstShift = 32 - kDigitBits;
inline constexpr int kSecondShift = kFirstShift - kDigitBits;

// Shared memory of the block.
struct SelectMemory {
  uint64_t first[kBins];  // sums by the first digit of the key
  uint64_t bins[kBins];   // by the digit at hand
  uint64_t scan[kWarpLanes];
  uint64_t found_before;
  int found_bin;
};

BATON_DEVICE_TABLE Exp2Table kDeviceExp2Table = kExp2Table;

// What a token adds to the sums.
struct Tally {
  bool weighs = false;     // its weight, else 1
  double highest = 0;      // the highest logit
  double scale = 0;        // log2 e over the temperature
  uint64_t last_kept = 0;  // places below it don't count
  uint64_t least = 0;      // lower weights don't count

  // To be called when all but these two is set: moves last_kept up to where weights are certainly
  // lower than `least_weight`, and lets those that are lower and still in front of it not count.
  BATON_DEVICE void SkipBelow(uint64_t least_weight) {
    least = least_weight;
    // The weight's power of two, and one more for safety; a rounding to the nearest float passes no
    // float over.
    const int power = 63 - LeadingZeros(least_weight) - kWeightBits - 1;
    const double logit = highest + power / scale;
    if (logit < -3.4e38) return;
    last_kept = Greatest(last_kept, uint64_t{KeyOf(static_cast<float>(logit))} << 32);
  }
  BATON_DEVICE uint64_t WeightOf(float logit) const {
    const double below = static_cast<double>(logit) - highest;
    return below == 0 ? kOne : FixedExp2(below * scale, kDeviceExp2Table.values);
  }
  BATON_DEVICE uint64_t Of(uint32_t key, int id, float logit) const {
    if (PlaceOf(key, id) < last_kept) return 0;
    if (!weighs) return 1;
    const uint64_t weight = WeightOf(logit);
    return weight >= least ? weight : 0;
  }
};

BATON_DEVICE void ClearBins(uint64_t* bins) {
  for (int i = ThreadIndex(); i < kBins; i += BlockThreads()) bins[i] = 0;
  SyncThreads();
}

// Of a block's values in threads before this one, and of all.
struct Scan {
  uint64_t before, all;
};
BATON_DEVICE Scan ScanBlock(uint64_t value, uint64_t* scratch) {
  uint64_t sum = value;
  BATON_UNROLL for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const uint64_t other = Shuffle(sum, (Lane() - distance) & (kWarpLanes - 1));
    if (Lane() >= distance) sum += other;
  }
  SyncThreads();
  if (Lane() == kWarpLanes - 1) scratch[Warp()] = sum;
  SyncThreads();
  Scan scan = {sum - value, 0};
  for (int warp = 0; warp < BlockThreads() / kWarpLanes; ++warp) {
    if (warp < Warp()) scan.before += scratch[warp];
    scan.all += scratch[warp];
  }
  return scan;
}

// This thread's share of the bins when they are taken from the highest down: [low, high).
// REQUIRES: the number of threads divides kBins.
struct BinRange {
  int low, high;
};
BATON_DEVICE BinRange OwnBins() {
  const int count = kBins / BlockThreads();
  const int high = kBins - ThreadIndex() * count;
  return {high - count, high};
}
BATON_DEVICE uint64_t SumOf(const uint64_t* bins, BinRange range) {
  uint64_t sum = 0;
  for (int bin = range.low; bin < range.high; ++bin) sum += bins[bin];
  return sum;
}

// The bin in which the sum from the highest bin down reaches the target, and the sum before it.
struct FoundBin {
  int bin;
  uint64_t before;
};
// REQUIRES: 0 < target <= the sum of all bins.
BATON_DEVICE FoundBin FindBin(const uint64_t* bins, uint64_t target, SelectMemory& memory) {
  const BinRange own = OwnBins();
  const uint64_t sum = SumOf(bins, own);
  uint64_t before = ScanBlock(sum, memory.scan).before;
  if (before < target && target - before <= sum) {
    int bin = own.high - 1;
    for (; bins[bin] < target - before; --bin) before += bins[bin];
    memory.found_bin = bin;
    memory.found_before = before;
  }
  SyncThreads();
  const FoundBin found = {memory.found_bin, memory.found_before};
  SyncThreads();
  return found;
}

// Fills memory.first; returns the sum of all.
BATON_DEVICE uint64_t BuildFirstDigit(const Row& row, const Tally& tally, SelectMemory& memory) {
  ClearBins(memory.first);
  ForTokens(row, [&](int id, float logit) {
    const uint32_t key = KeyOf(logit);
    const uint64_t value = tally.Of(key, id, logit);
    if (value != 0) AtomicAdd(&memory.first[key >> kFirstShift], value);
  });
  SyncThreads();
  return ScanBlock(SumOf(memory.first, OwnBins()), memory.scan).all;
}

// The number-th (from 1) of the tokens with that key, by id.
BATON_DEVICE int NthOfEquals(const Row& row, uint32_t key, uint64_t number, SelectMemory& memory) {
  ClearBins(memory.bins);
  ForTokens(row, [&](int id, float logit) {
    if (KeyOf(logit) == key) AtomicAdd(&memory.bins[kBins - 1 - (id >> kDigitBits)], uint64_t{1});
  });
  SyncThreads();
  const FoundBin found = FindBin(memory.bins, number, memory);
  ClearBins(memory.bins);
  const int first = (kBins - 1 - found.bin) << kDigitBits;
  const Row part = {row.logits + first, Least(kBins, row.size - first)};
  ForTokens(part, [&](int id, float logit) {
    if (KeyOf(logit) == key) AtomicAdd(&memory.bins[kBins - 1 - id], uint64_t{1});
  });
  SyncThreads();
  return first + kBins - 1 - FindBin(memory.bins, number - found.before, memory).bin;
}

// A prefix of the order.
struct Prefix {
  uint64_t last;  // place of its last token
  uint64_t sum;   // of what its tokens add
};
// The shortest prefix whose sum reaches the target. By all threads together, behind
// BuildFirstDigit. The tally's last_kept may have been raised since, if the target can still be
// reached. REQUIRES: 0 < target <= the sum.
BATON_DEVICE Prefix PrefixReaching(const Row& row, const Tally& tally, uint64_t target,
                                   SelectMemory& memory) {
  FoundBin found = FindBin(memory.first, target, memory);
  uint64_t before = found.before;
  auto prefix = static_cast<uint32_t>(found.bin);  // the key's digits found so far
  int known_shift = kFirstShift;
  for (int shift = kSecondShift; known_shift > 0; shift = 0) {
    const uint32_t mask = (uint32_t{1} << (known_shift - shift)) - 1;
    ClearBins(memory.bins);
    ForTokens(row, [&](int id, float logit) {
      const uint32_t key = KeyOf(logit);
      if (key >> known_shift != prefix) return;
      const uint64_t value = tally.Of(key, id, logit);
      if (value != 0) AtomicAdd(&memory.bins[key >> shift & mask], value);
    });
    SyncThreads();
    found = FindBin(memory.bins, target - before, memory);
    before += found.before;
    prefix = prefix << (known_shift - shift) | static_cast<uint32_t>(found.bin);
    known_shift = shift;
  }
  // Equal keys add equal values.
  const uint64_t each = tally.weighs ? tally.WeightOf(LogitOfKey(prefix)) : 1;
  const uint64_t number = (target - before + each - 1) / each;
  const int id = NthOfEquals(row, prefix, number, memory);
  return {PlaceOf(prefix, id), before + number * each};
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_RADIX_SELECT_CUH_
