// Finds the first token, in order, at which a sum of counts or weights reaches a target. See
// sampling.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_RADIX_SELECT_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_RADIX_SELECT_CUH_

#include "common/backend/cuda/kernels/token_order.cuh"
#include "common/backend/cuda/kernels/token_weights.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// A key's digits, from the top: 11, 11 and 10 bits. An id's, for ids below 2^22: 11 and 11.
inline constexpr int kDigitBits = 11;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kFirstShift = 32 - kDigitBits;
inline constexpr int kSecondShift = kFirstShift - kDigitBits;

// A sum in shared memory, low word first. The hardware adds 32 bits there; 64 would be a loop of
// compare-and-swap, in which the many tokens of one bin wait for each other.
struct alignas(8) Bin {
  uint32_t words[2];
};
BATON_DEVICE uint64_t ValueOf(const Bin& bin) {
  return uint64_t{bin.words[1]} << 32 | bin.words[0];
}
BATON_DEVICE void SetValue(Bin& bin, uint64_t value) {
  bin.words[0] = static_cast<uint32_t>(value);
  bin.words[1] = static_cast<uint32_t>(value >> 32);
}
// By any number of threads: each carry is seen by the one that caused it, so the words are exact
// when all are done.
BATON_DEVICE void AddTo(uint32_t& low, uint32_t& high, uint64_t value) {
  const uint64_t old = AtomicAdd(&low, static_cast<uint32_t>(value));
  const auto high_value = static_cast<uint32_t>((old + value) >> 32);
  if (high_value != 0) AtomicAdd(&high, high_value);
}

// For fewer than 2^32 of them.
BATON_DEVICE void Count(Bin& bin) { AtomicAdd(&bin.words[0], uint32_t{1}); }

// Shared memory of the block.
struct alignas(16) SelectMemory {
  Bin first[kBins];  // sums by the first digit of the key or by LogitBins; or listed places
  Bin bins[kBins];   // sums by the digit at hand; or the listed tokens' values
  uint64_t scan[kWarpLanes];
  uint64_t found_before;
  int found_bin;
  uint32_t listed;
};

BATON_DEVICE void ClearBins(Bin* bins) {
  for (int i = 2 * ThreadIndex(); i < kBins; i += 2 * BlockThreads()) Store16(bins + i, Vec16{});
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
BATON_DEVICE uint64_t SumOf(const Bin* bins, BinRange range) {
  uint64_t sum = 0;
  for (int bin = range.low; bin < range.high; ++bin) sum += ValueOf(bins[bin]);
  return sum;
}

// Sums of this thread's bins, of those before them, and of all.
struct BinSums {
  uint64_t own, before, all;
};
BATON_DEVICE BinSums SumBins(const Bin* bins, SelectMemory& memory) {
  const uint64_t own = SumOf(bins, OwnBins());
  const Scan scan = ScanBlock(own, memory.scan);
  return {own, scan.before, scan.all};
}

// The bin in which the sum from the highest bin down reaches the target, and the sum before it.
struct FoundBin {
  int bin;
  uint64_t before;
};
// REQUIRES: 0 < target <= the sum of all bins.
BATON_DEVICE FoundBin FindBin(const Bin* bins, const BinSums& sums, uint64_t target,
                              SelectMemory& memory) {
  uint64_t before = sums.before;
  if (before < target && target - before <= sums.own) {
    int bin = OwnBins().high - 1;
    for (; ValueOf(bins[bin]) < target - before; --bin) before += ValueOf(bins[bin]);
    memory.found_bin = bin;
    memory.found_before = before;
  }
  SyncThreads();
  const FoundBin found = {memory.found_bin, memory.found_before};
  SyncThreads();
  return found;
}
BATON_DEVICE FoundBin FindBin(const Bin* bins, uint64_t target, SelectMemory& memory) {
  return FindBin(bins, SumBins(bins, memory), target, memory);
}

// Sums of what a row's tokens add, by bin_of(logit), in several parts (MergedSum).
//
// Lanes of a warp that add to one word serialise. So lanes are spread over several histograms, a
// bin's words side by side in different banks: four for counts, two for weights, whose low words
// are in `first` and high words in `bins`.
template <class BinOf>
BATON_DEVICE void BuildHistogram(const Row& row, const Tally& tally, SelectMemory& memory,
                                 const BinOf& bin_of) {
  ClearBins(memory.first);
  ClearBins(memory.bins);
  const int copy = Lane() % 2;
  if (!tally.weighs) {
    Bin* const bins = Lane() % 4 < 2 ? memory.first : memory.bins;
    ForTokens(row, [&](int id, float logit) {
      if (tally.Keeps(id, logit)) AtomicAdd(&bins[bin_of(logit)].words[copy], uint32_t{1});
    });
    SyncThreads();
    return;
  }
  ForQuads<2>(row, [&](int first, Vec16 v, bool) {
    if (first + 4 > row.size) {  // -inf has no weight
      BATON_UNROLL for (int i = 1; i < 4; ++i) {
        if (first + i >= row.size) v.x[i] = FloatBits(-kInfiniteLogit);
      }
    }
    // Two tokens at a time, without a condition: each is a long chain of operations.
    BATON_UNROLL for (int pair = 0; pair < 4; pair += 2) {
      bool keeps[2];
      BATON_UNROLL for (int i = 0; i < 2; ++i) {
        keeps[i] = tally.Keeps(first + pair + i, BitsFloat(v.x[pair + i]));
      }
      if (!(keeps[0] | keeps[1])) continue;
      uint64_t values[2];
      int bins[2];
      BATON_UNROLL for (int i = 0; i < 2; ++i) {
        const float logit = keeps[i] ? BitsFloat(v.x[pair + i]) : tally.highest;
        values[i] = tally.WeightOf(logit, keeps[i]);
        bins[i] = bin_of(logit);
      }
      BATON_UNROLL for (int i = 0; i < 2; ++i) {
        if (values[i] < tally.least) continue;
        AddTo(memory.first[bins[i]].words[copy], memory.bins[bins[i]].words[copy], values[i]);
      }
    }
  });
  SyncThreads();
}
BATON_DEVICE uint64_t MergedSum(const SelectMemory& memory, bool weighs, int bin) {
  const Bin& a = memory.first[bin];
  const Bin& b = memory.bins[bin];
  return uint64_t{a.words[0]} + a.words[1] +
         ((uint64_t{b.words[0]} + b.words[1]) << (weighs ? 32 : 0));
}

// Fills memory.first by the first digit of the key; returns the sum of all.
BATON_DEVICE uint64_t BuildFirstDigit(const Row& row, const Tally& tally, SelectMemory& memory) {
  BuildHistogram(row, tally, memory,
                 [](float logit) { return static_cast<int>(KeyOf(logit) >> kFirstShift); });
  const BinRange own = OwnBins();
  uint64_t sum = 0;
  for (int bin = own.low; bin < own.high; ++bin) {
    const uint64_t value = MergedSum(memory, tally.weighs, bin);
    SetValue(memory.first[bin], value);
    sum += value;
  }
  return ScanBlock(sum, memory.scan).all;
}

// The number-th (from 1) of the tokens with that key, by id.
BATON_DEVICE int NthOfEquals(const Row& row, uint32_t key, uint64_t number, SelectMemory& memory) {
  ClearBins(memory.bins);
  ForTokens(row, [&](int id, float logit) {
    if (KeyOf(logit) == key) Count(memory.bins[kBins - 1 - (id >> kDigitBits)]);
  });
  SyncThreads();
  const FoundBin found = FindBin(memory.bins, number, memory);
  ClearBins(memory.bins);
  const int first = (kBins - 1 - found.bin) << kDigitBits;
  Row around = row;
  around.begin = first;
  around.size = Least(first + kBins, row.size);
  ForTokens(around, [&](int id, float logit) {
    if (KeyOf(logit) == key) Count(memory.bins[kBins - 1 - (id - first)]);
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
// BuildFirstDigit. The tally's order may end sooner since, if the target can still be reached.
// REQUIRES: 0 < target <= the sum.
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
      if (key >> known_shift != prefix || !tally.Keeps(id, logit)) return;
      const uint64_t value = tally.Of(logit);
      if (value == 0) return;
      Bin& bin = memory.bins[key >> shift & mask];
      AddTo(bin.words[0], bin.words[1], value);
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
