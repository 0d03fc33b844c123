#include "common/backend/cuda/kernels/adjust_logits.cuh"
#include "common/backend/cuda/kernels/draw_token.cuh"
#include "common/backend/cuda/kernels/logit_bins.cuh"
#include "common/backend/cuda/kernels/radix_select.cuh"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/kernels/token_order.cuh"

namespace baton::backend::cuda {
namespace {

constexpr int kMaxThreads = 512;
// A multiprocessor has so many at once.
constexpr int kBlocks = 2;
// A block has at least so many: two loads of 16 bytes a thread.
constexpr int kPartTokens = 4096;

static_assert(kSampleHistogramBins == kBins);
static_assert(kMaxSortedTokens <= kBins);

BATON_HOST_DEVICE bool IsGreedy(float temperature, int top_k) {
  return temperature == 0 || top_k == 1;
}
BATON_HOST_DEVICE bool HasTopK(int top_k, int vocab) { return top_k > 0 && top_k < vocab; }
// Whether the tokens of top_k, with the rest of the last one's bin, are too many to be sorted. (In
// a row with twice as many in one bin they are, whatever this says.)
BATON_HOST_DEVICE bool IsLarge(int top_k, int most_sorted) { return top_k > most_sorted / 2; }

BATON_DEVICE Row RawRow(const SampleLaunch& launch, const SampleRequest& request) {
  return {launch.logits + request.logit_row * launch.logits_stride, launch.vocab};
}
// The row has the request's changes.
BATON_DEVICE Row RowOf(const SampleLaunch& launch, const SampleRequest& request) {
  Row row = RawRow(launch, request);
  if (request.workspace_row >= 0) {
    const AdjustedRow adjusted = AdjustedRowOf(launch, request);
    row.adjusted = adjusted.logits;
    row.adjusted_quads = adjusted.quads;
  }
  return row;
}
// This block's part of a row that Grid().x blocks share.
BATON_DEVICE Row PartOf(const Row& row) {
  const auto blocks = static_cast<int>(Grid().x), block = static_cast<int>(BlockIndex().x);
  const int quads = (row.size + 3) / 4;
  const int each = (quads + blocks - 1) / blocks;
  Row part = row;
  part.begin = Least(block * each, quads) * 4;
  part.size = Greatest(part.begin, Least(part.begin + each * 4, row.size));
  return part;
}

BATON_DEVICE SampleResult NonFinite(const Row& row, uint64_t first_bad) {
  if (first_bad == 0) return {kSampledNonFinite, -1, 0};
  return {kSampledNonFinite, IdOf(first_bad), row.logits[IdOf(first_bad)]};
}
BATON_DEVICE SampleResult Sampled(uint64_t place) { return {kSampledToken, IdOf(place), 0}; }
BATON_DEVICE SampleResult NoTokenLeft() { return {kSampledNoTokenLeft, 0, 0}; }

// Whether this is the last of the request's blocks to come here, which finds done what they did.
// `flag`: in shared memory.
BATON_DEVICE bool IsLast(SampleScratch& scratch, int& flag) {
  ThreadFence();
  SyncThreads();
  if (ThreadIndex() == 0) {
    flag = AtomicAdd(&scratch.state.arrived, 1u) == Grid().x - 1 ? 1 : 0;
    ThreadFence();
  }
  SyncThreads();
  const bool is_last = flag != 0;
  // Before the barrier: all threads read the 16 bytes that it is in.
  if (is_last && ThreadIndex() == 0) scratch.state.arrived = 0;
  SyncThreads();
  return is_last;
}

// All threads of the last block call it.
BATON_DEVICE void Finish(const SampleLaunch& launch, const SampleRequest& request,
                         const SampleResult& result) {
  if (request.workspace_row >= 0) ForgetChanges(launch, request);
  if (ThreadIndex() != 0) return;
  launch.results[BlockIndex().y] = result;
  launch.scratch[BlockIndex().y].state = {};
}

BATON_DEVICE uint64_t LowOf(const Vec16& v) { return uint64_t{v.x[1]} << 32 | v.x[0]; }
BATON_DEVICE uint64_t HighOf(const Vec16& v) { return uint64_t{v.x[3]} << 32 | v.x[2]; }

struct InspectMemory {
  uint64_t highest[Inspected::kCount * kMaxThreads / kWarpLanes];
  int is_last;
};

// The first launch: all that decides a greedy request.
BATON_KERNEL_RESIDENT(kMaxThreads, kBlocks)
SampleInspectKernel(SampleLaunch launch) {
  AwaitPrevious();
  const SampleRequest& request = launch.requests[BlockIndex().y];
  SampleScratch& scratch = launch.scratch[BlockIndex().y];
  auto& memory = *reinterpret_cast<InspectMemory*>(SharedMemory());
  const Row row = RowOf(launch, request);
  const Row part = PartOf(row);
  if (request.workspace_row >= 0) {
    AdjustLogits(launch, request, part, AdjustedRowOf(launch, request));
  }
  const Inspected found = Inspect(part, memory.highest);
  if (ThreadIndex() == 0) {
    AtomicMax(&scratch.state.highest, found.highest);
    AtomicMax(&scratch.state.lowest, found.lowest);
    AtomicMax(&scratch.state.is_finite, found.is_finite);
    if (found.first_bad != 0) AtomicMax(&scratch.state.first_bad, found.first_bad);
  }
  if (!IsLast(scratch, memory.is_last)) return;

  const Vec16 ends = LoadFresh16(&scratch.state.highest);
  const Vec16 kinds = LoadFresh16(&scratch.state.is_finite);
  SyncThreads();  // Finish writes what all threads have read
  const uint64_t highest = LowOf(ends), first_bad = HighOf(kinds);
  if (first_bad != 0 || LowOf(kinds) == 0) {
    return Finish(launch, request, NonFinite(row, first_bad));
  }
  if (highest == 0) return Finish(launch, request, NoTokenLeft());
  if (IsGreedy(request.temperature, request.top_k)) {
    return Finish(launch, request, Sampled(highest));
  }
  if (ThreadIndex() != 0) return;
  const Tally weights = WeightsOf(request, LogitOf(highest), 0);
  const float lowest = LogitOfKey(~static_cast<uint32_t>(HighOf(ends)));
  scratch.state.bins_scale = ScaleOfBins(static_cast<double>(weights.highest) -
                                         static_cast<double>(Greatest(lowest, weights.last_logit)));
  scratch.state.step =
      HasTopK(request.top_k, launch.vocab) ? SampleScratch::kTopK : SampleScratch::kDraw;
}

// What all blocks added, to memory.first; there it is 0 again.
BATON_DEVICE void TakeHistogram(SampleScratch& scratch, SelectMemory& memory) {
  SyncThreads();
  for (int bin = 2 * ThreadIndex(); bin < kBins; bin += 2 * BlockThreads()) {
    const Vec16 v = LoadFresh16(scratch.histogram + bin);
    SetValue(memory.first[bin], LowOf(v));
    SetValue(memory.first[bin + 1], HighOf(v));
    Store16(scratch.histogram + bin, Vec16{});
  }
  SyncThreads();
}

// The bins of what has to be listed for top_k: all that it keeps, or only those with its last
// token.
BATON_DEVICE void ChooseTopKBins(const SampleRequest& request, bool is_large,
                                 SampleScratch& scratch, SelectMemory& memory) {
  const FoundBin low = FindBin(memory.first, static_cast<uint64_t>(request.top_k), memory);
  if (ThreadIndex() != 0) return;
  scratch.state.before = is_large ? low.before : 0;
  scratch.state.high_begin = is_large ? low.bin : kBins - 1;
  scratch.state.high_end = scratch.state.low_bin = low.bin;
}

// The bins that the token can be in, and those that filters have to look at.
BATON_DEVICE void ChooseBins(const SampleRequest& request, const LogitBins& bins,
                             SampleScratch& scratch, SelectMemory& memory) {
  const BinSums sums = SumBins(memory.first, memory);
  const uint64_t total = sums.all;
  // top_p's last token, the lowest that may be chosen, or the chosen one's bin itself.
  const bool cuts = request.top_p < 1;
  const uint64_t target = cuts ? KeptShare(request, total) : RandomTarget(request, total);
  FoundBin low = FindBin(memory.first, sums, target, memory);
  FoundBin begin = low, end = low;
  if (cuts && request.min_p > 0) {
    // The sum of what min_p leaves is not known, but it leaves nothing in lower bins than this.
    Tally kept = WeightsOf(request, bins.highest, 0);
    kept.SkipBelow(LeastWeight(request), request.temperature);
    low.bin = Greatest(low.bin, bins.Of(kept.last_logit));
    begin = {kBins - 1, 0};
    end = low;
  } else if (cuts) {
    // What top_p leaves reaches into the bin by something between nothing and all of it, so the
    // random share of that is here. Lower totals have lower shares.
    const uint64_t most = low.before + ValueOf(memory.first[low.bin]);
    begin = FindBin(memory.first, sums, RandomTarget(request, low.before + 1), memory);
    end = FindBin(memory.first, sums, RandomTarget(request, most), memory);
  }
  if (ThreadIndex() != 0) return;
  scratch.state.total = total;
  scratch.state.before = begin.before;
  scratch.state.gap =
      end.bin == low.bin ? 0 : low.before - end.before - ValueOf(memory.first[end.bin]);
  scratch.state.high_begin = begin.bin;
  scratch.state.high_end = end.bin;
  scratch.state.low_bin = low.bin;
}

// The second launch, and the fourth.
BATON_KERNEL_RESIDENT(kMaxThreads, kBlocks)
SampleWeighKernel(SampleLaunch launch) {
  AwaitPrevious();
  SampleScratch& scratch = launch.scratch[BlockIndex().y];
  const int step = scratch.state.step;
  if (step == SampleScratch::kNothing) return;
  const SampleRequest& request = launch.requests[BlockIndex().y];
  auto& memory = *reinterpret_cast<SelectMemory*>(SharedMemory());
  const LogitBins bins = {LogitOf(scratch.state.highest), scratch.state.bins_scale};
  Tally tally;
  if (step == SampleScratch::kDraw) {
    tally = WeightsOf(request, bins.highest, scratch.state.last);
  }
  BuildHistogram(PartOf(RowOf(launch, request)), tally, memory,
                 [&](float logit) { return bins.Of(logit); });
  for (int bin = ThreadIndex(); bin < kBins; bin += BlockThreads()) {
    const uint64_t sum = MergedSum(memory, tally.weighs, bin);
    if (sum != 0) AtomicAdd(&scratch.histogram[bin], sum);
  }
  if (!IsLast(scratch, memory.found_bin)) return;
  TakeHistogram(scratch, memory);
  if (step == SampleScratch::kTopK) {
    ChooseTopKBins(request, IsLarge(request.top_k, launch.most_sorted), scratch, memory);
  } else {
    ChooseBins(request, bins, scratch, memory);
  }
}

// Lists a part's tokens of the wanted bins whose weights may be above 0.
BATON_DEVICE void Gather(const SampleLaunch& launch, const Row& part, const Tally& weights,
                         const LogitBins& bins, SampleScratch& scratch, SelectMemory& memory) {
  const int low = scratch.state.low_bin;
  const int high_begin = scratch.state.high_begin, high_end = scratch.state.high_end;
  if (ThreadIndex() == 0) memory.listed = 0;
  SyncThreads();
  ForTokens<4>(part, [&](int id, float logit) {
    const int bin = bins.Of(logit);
    if (bin != low && (bin < high_end || bin > high_begin)) return;
    if (!weights.Keeps(id, logit)) return;
    const uint32_t at = AtomicAdd(&memory.listed, 1u);
    if (at < kMaxSortedTokens) SetValue(memory.first[at], PlaceOf(KeyOf(logit), id));
  });
  SyncThreads();
  if (memory.listed == 0) return;
  if (ThreadIndex() == 0) {
    memory.found_before = AtomicAdd(&scratch.state.listed, memory.listed);
  }
  SyncThreads();
  const int count = static_cast<int>(Least(memory.listed, uint32_t{kMaxSortedTokens}));
  const uint64_t begin = memory.found_before;
  const auto end = static_cast<uint64_t>(launch.most_sorted);
  for (int i = ThreadIndex(); i < count; i += BlockThreads()) {
    const uint64_t at = begin + static_cast<uint64_t>(i);
    if (at < end) StoreGlobal(scratch.places + at, ValueOf(memory.first[i]));
  }
}

// The third launch, and the fifth.
BATON_KERNEL_RESIDENT(kMaxThreads, kBlocks)
SampleDrawKernel(SampleLaunch launch) {
  AwaitPrevious();
  SampleScratch& scratch = launch.scratch[BlockIndex().y];
  const int step = scratch.state.step;
  if (step == SampleScratch::kNothing) return;
  const SampleRequest& request = launch.requests[BlockIndex().y];
  auto& memory = *reinterpret_cast<SelectMemory*>(SharedMemory());
  const LogitBins bins = {LogitOf(scratch.state.highest), scratch.state.bins_scale};
  const Row row = RowOf(launch, request);
  const Tally weights = WeightsOf(request, bins.highest, scratch.state.last);
  const ListedSums sums = {scratch.state.before, scratch.state.gap, scratch.state.total,
                           scratch.state.low_bin};
  Gather(launch, PartOf(row), weights, bins, scratch, memory);
  if (!IsLast(scratch, memory.found_bin)) return;

  const int listed = static_cast<int>(LoadFresh16(&scratch.state.arrived).x[1]);
  if (listed > launch.most_sorted) {
    return Finish(launch, request, Sampled(Draw(row, bins.highest, request, memory)));
  }
  SortPlaces(scratch.places, listed, memory);
  if (step == SampleScratch::kTopK && IsLarge(request.top_k, launch.most_sorted)) {
    // Where fewer are listed, the rest has no weight.
    const int last = Least(request.top_k - static_cast<int>(sums.before), listed);
    if (ThreadIndex() != 0) return;
    if (last > 0) scratch.state.last = ValueOf(memory.first[last - 1]);
    scratch.state.listed = 0;
    scratch.state.step = SampleScratch::kDraw;
    return;
  }
  const int top_k = step == SampleScratch::kTopK ? request.top_k : 0;
  const uint64_t place = DrawSorted(listed, weights, bins, top_k, request, sums, memory);
  Finish(launch, request, Sampled(place));
}

}  // namespace

int SampleLaunches(float temperature, int top_k, int vocab, int most_sorted) {
  if (IsGreedy(temperature, top_k)) return 1;
  return HasTopK(top_k, vocab) && IsLarge(top_k, most_sorted) ? 5 : 3;
}

SampleShape SampleShapeFor(int requests, int vocab, int multiprocessors) {
  SampleShape shape;
  const int most = (vocab + kPartTokens - 1) / kPartTokens;
  shape.blocks =
      std::clamp(kBlocks * multiprocessors / std::max(requests, 1), std::min(most, kBlocks), most);
  return shape;
}

void LaunchSample(const SampleLaunch& launch, int requests, const SampleShape& shape,
                  Stream stream) {
  SampleLaunch some = launch;
  some.most_sorted = shape.most_sorted;
  for (int first = 0; first < requests; first += kMaxSamplesAtOnce) {
    some.requests = launch.requests + first;
    some.results = launch.results + first;
    const int count = std::min(requests - first, kMaxSamplesAtOnce);
    const GridSize grid = {static_cast<unsigned>(shape.blocks), static_cast<unsigned>(count), 1};
    Launch(SampleInspectKernel, grid, shape.threads, sizeof(InspectMemory), stream, some);
    for (int i = 1; i < shape.launches; i += 2) {
      Launch(SampleWeighKernel, grid, shape.threads, sizeof(SelectMemory), stream, some);
      Launch(SampleDrawKernel, grid, shape.threads, sizeof(SelectMemory), stream, some);
    }
  }
}

}  // namespace baton::backend::cuda
