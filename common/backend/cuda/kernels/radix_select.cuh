// Finds the first token, in order, at which a sum of counts or weights reaches a target. See
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
  const auto low_value = static_cast<uint32_t>(value);
  const uint32_t old = AtomicAdd(&low, low_value);
  const uint32_t carry = old + low_value < old ? 1 : 0;
  const uint32_t high_value = static_cast<uint32_t>(value >> 32) + carry;
  if (high_value != 0) AtomicAdd(&high, high_value);
}

// For fewer than 2^32 of them.
BATON_DEVICE void Count(Bin& bin) { AtomicAdd(&bin.words[0], uint32_t{1}); }

// Shared memory of the block.
struct SelectMemory {
  Bin first[kBins];  // sums by the first digit of the key
  Bin bins[kBins];   // by the digit at hand
  uint64_t scan[kWarpLanes];
  uint64_t found_before;
  int found_bin;
};

BATON_DEVICE_TABLE Exp2Table kDeviceExp2Table = kExp2Table;

// The amount that a token adds to the sums.
struct Tally {
  bool weighs = false;     // its weight, else 1
  double highest = 0;      // the highest logit
  double scale = 0;        // log2 e over the temperature
  uint64_t last_kept = 0;  // places below it don't count
  uint64_t least = 0;      // lower weights don't count

  // To be called when all but these two is set: moves last_kept up to where weights are certainly
  // lower than `least_weight`, and lets those that are lower and still in front of it not count.
  BATON_DEVICE void SkipBelow(uint64_t least_weight, float temperature) {
    least = least_weight;
    // The weight's power of two, and one more for safety; rounding to the nearest float keeps the
    // order of floats.
    const int power = 63 - LeadingZeros(least_weight) - kWeightBits - 1;
    const double logit = highest + power * (M_LN2 * static_cast<double>(temperature));
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

BATON_DEVICE void ClearBins(Bin* bins) {
  for (int i = ThreadIndex(); i < kBins; i += BlockThreads()) SetValue(bins[i], 0);
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

// The bin in which the sum from the highest bin down reaches the target, and the sum before it.
struct FoundBin {
  int bin;
  uint64_t before;
};
// REQUIRES: 0 < target <= the sum of all bins.
BATON_DEVICE FoundBin FindBin(const Bin* bins, uint64_t target, SelectMemory& memory) {
  const BinRange own = OwnBins();
  const uint64_t sum = SumOf(bins, own);
  uint64_t before = ScanBlock(sum, memory.scan).before;
  if (before < target && target - before <= sum) {
    int bin = own.high - 1;
    for (; ValueOf(bins[bin]) < target - before; --bin) before += ValueOf(bins[bin]);
    memory.found_bin = bin;
    memory.found_before = before;
  }
  SyncThreads();
  const FoundBin found = {memory.found_bin, memory.found_before};
  SyncThreads();
  return found;
}

// Fills memory.first; returns the sum of all.
//
// Most logits are in a dozen bins, and lanes of a warp that add to one word serialize. So lanes are
// spread over several histograms, a bin's words side by side in different banks: four for counts,
// two for weights, whose low words are in `first` and high words in `bins`.
template <class Tokens>
BATON_DEVICE uint64_t BuildFirstDigit(const Tokens& tokens, const Tally& tally,
                                      SelectMemory& memory) {
  ClearBins(memory.first);
  ClearBins(memory.bins);
  ForTokens(tokens, [&](int id, float logit) {
    const uint32_t key = KeyOf(logit);
    const uint64_t value = tally.Of(key, id, logit);
    if (value == 0) return;
    const uint32_t bin = key >> kFirstShift;
    const int copy = Lane() % 2;
    if (tally.weighs) {
      AddTo(memory.first[bin].words[copy], memory.bins[bin].words[copy], value);
    } else {
      Bin* const bins = Lane() % 4 < 2 ? memory.first : memory.bins;
      AtomicAdd(&bins[bin].words[copy], uint32_t{1});
    }
  });
  SyncThreads();
  const BinRange own = OwnBins();
  uint64_t sum = 0;
  for (int bin = own.low; bin < own.high; ++bin) {
    const Bin& a = memory.first[bin];
    const Bin& b = memory.bins[bin];
    const uint64_t value = uint64_t{a.words[0]} + a.words[1] +
                           ((uint64_t{b.words[0]} + b.words[1]) << (tally.weighs ? 32 : 0));
    SetValue(memory.first[bin], value);
    sum += value;
  }
  return ScanBlock(sum, memory.scan).all;
}

// body(id - first, logit) for the tokens whose ids are in [first, first + kBins).
template <class Body>
BATON_DEVICE void ForIdsFrom(const Row& row, int first, const Body& body) {
  ForTokens(Row{row.logits + first, Least(kBins, row.size - first)}, body);
}
template <class Body>
BATON_DEVICE void ForIdsFrom(const TokenList& list, int first, const Body& body) {
  ForTokens(list, [&](int id, float logit) {
    if (id >= first && id < first + kBins) body(id - first, logit);
  });
}

// The number-th (from 1) of the tokens with that key, by id.
template <class Tokens>
BATON_DEVICE int NthOfEquals(const Tokens& tokens, uint32_t key, uint64_t number,
                             SelectMemory& memory) {
  ClearBins(memory.bins);
  ForTokens(tokens, [&](int id, float logit) {
    if (KeyOf(logit) == key) Count(memory.bins[kBins - 1 - (id >> kDigitBits)]);
  });
  SyncThreads();
  const FoundBin found = FindBin(memory.bins, number, memory);
  ClearBins(memory.bins);
  const int first = (kBins - 1 - found.bin) << kDigitBits;
  ForIdsFrom(tokens, first, [&](int from_first, float logit) {
    if (KeyOf(logit) == key) Count(memory.bins[kBins - 1 - from_first]);
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
template <class Tokens>
BATON_DEVICE Prefix PrefixReaching(const Tokens& tokens, const Tally& tally, uint64_t target,
                                   SelectMemory& memory) {
  FoundBin found = FindBin(memory.first, target, memory);
  uint64_t before = found.before;
  auto prefix = static_cast<uint32_t>(found.bin);  // the key's digits found so far
  int known_shift = kFirstShift;
  for (int shift = kSecondShift; known_shift > 0; shift = 0) {
    const uint32_t mask = (uint32_t{1} << (known_shift - shift)) - 1;
    ClearBins(memory.bins);
    ForTokens(tokens, [&](int id, float logit) {
      const uint32_t key = KeyOf(logit);
      if (key >> known_shift != prefix) return;
      const uint64_t value = tally.Of(key, id, logit);
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
  const int id = NthOfEquals(tokens, prefix, number, memory);
  return {PlaceOf(prefix, id), before + number * each};
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_RADIX_SELECT_CUH_
