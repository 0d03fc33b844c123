#include "common/backend/cuda/kernels/adjust_logits.cuh"
#include "common/backend/cuda/kernels/draw_token.cuh"
#include "common/backend/cuda/kernels/radix_select.cuh"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/kernels/token_order.cuh"

namespace baton::backend::cuda {
namespace {

constexpr int kMaxThreads = 1024;
// Of a block that shares a request: two loads of 16 bytes a thread are its part.
constexpr int kSplitThreads = 512;
constexpr int kPartTokens = 4096;

static_assert(kSampleHistogramBins == kBins);
static_assert(kMaxSortedTokens <= kBins);

BATON_DEVICE bool IsGreedy(const SampleRequest& request) {
  return request.temperature == 0 || request.top_k == 1;
}
BATON_DEVICE bool HasTopK(const SampleRequest& request, int vocab) {
  return request.top_k > 0 && request.top_k < vocab;
}

BATON_DEVICE Row RawRow(const SampleLaunch& launch, const SampleRequest& request) {
  return {launch.logits + request.logit_row * launch.logits_stride, launch.vocab};
}
// Where a request's changed logits are; null if it changes none.
BATON_DEVICE float* ChangedRow(const SampleLaunch& launch, const SampleRequest& request) {
  if (request.workspace_row < 0) return nullptr;
  return launch.adjusted + request.workspace_row * launch.workspace_stride;
}
BATON_DEVICE IdRange IdsOf(const Row& row) {
  return {static_cast<uint32_t>(row.begin), static_cast<uint32_t>(row.size)};
}

BATON_DEVICE SampleResult NonFinite(const Row& raw, uint64_t first_bad) {
  if (first_bad == 0) return {kSampledNonFinite, -1, 0};
  return {kSampledNonFinite, IdOf(first_bad), raw.logits[IdOf(first_bad)]};
}
BATON_DEVICE SampleResult Sampled(uint64_t place) { return {kSampledToken, IdOf(place), 0}; }
BATON_DEVICE SampleResult NoTokenLeft() { return {kSampledNoTokenLeft, 0, 0}; }

BATON_KERNEL(kMaxThreads)
SampleKernel(SampleLaunch launch) {
  AwaitPrevious();
  const SampleRequest& request = launch.requests[BlockIndex().x];
  const auto finish = [&](const SampleResult& result) {
    if (ThreadIndex() == 0) launch.results[BlockIndex().x] = result;
  };
  auto& memory = *reinterpret_cast<SelectMemory*>(SharedMemory());
  Row row = RawRow(launch, request);
  float* const changed = ChangedRow(launch, request);
  Inspected inspected = Inspect(row, changed, memory.scan);
  if (inspected.first_bad != 0 || inspected.highest == 0) {
    return finish(NonFinite(row, inspected.first_bad));
  }
  if (changed != nullptr) {
    AdjustLogits(launch, request, IdsOf(row), changed);
    row.logits = changed;
    inspected = Inspect(row, nullptr, memory.scan);
    if (inspected.highest == 0) return finish(NoTokenLeft());
  }
  if (IsGreedy(request)) return finish(Sampled(inspected.highest));
  finish(Sampled(Draw(row, inspected.highest, request, 0, memory)));
}

// This block's part of a row that Grid().x blocks share.
BATON_DEVICE Row PartOf(const Row& row) {
  const auto blocks = static_cast<int>(Grid().x), block = static_cast<int>(BlockIndex().x);
  const int quads = (row.size + 3) / 4;
  const int each = (quads + blocks - 1) / blocks;
  const int begin = Least(block * each, quads) * 4;
  return {row.logits, Greatest(begin, Least(begin + each * 4, row.size)), begin};
}

// Adds BuildFirstDigit's histogram of a part; each thread adds its bins.
BATON_DEVICE void AddHistogram(const SelectMemory& memory, SampleScratch& scratch) {
  const BinRange own = OwnBins();
  for (int bin = own.low; bin < own.high; ++bin) {
    const uint64_t value = ValueOf(memory.first[bin]);
    if (value != 0) AtomicAdd(&scratch.histogram[bin], value);
  }
}
// What all blocks added, to memory.first.
BATON_DEVICE void FetchHistogram(const SampleScratch& scratch, SelectMemory& memory) {
  SyncThreads();
  for (int bin = 2 * ThreadIndex(); bin < kBins; bin += 2 * BlockThreads()) {
    const Vec16 v = LoadFresh16(scratch.histogram + bin);
    SetValue(memory.first[bin], uint64_t{v.x[1]} << 32 | v.x[0]);
    SetValue(memory.first[bin + 1], uint64_t{v.x[3]} << 32 | v.x[2]);
  }
  SyncThreads();
}
BATON_DEVICE void ClearHistogram(SampleScratch& scratch) {
  for (int bin = 2 * ThreadIndex(); bin < kBins; bin += 2 * BlockThreads()) {
    Store16(scratch.histogram + bin, Vec16{});
  }
}

// Whether this is the last of the request's blocks to come here, which finds done what they did.
BATON_DEVICE bool IsLast(SampleScratch& scratch, SelectMemory& memory) {
  ThreadFence();
  SyncThreads();
  if (ThreadIndex() == 0) {
    memory.found_bin = AtomicAdd(&scratch.state.arrived, 1u) == Grid().x - 1 ? 1 : 0;
    ThreadFence();
  }
  SyncThreads();
  const bool is_last = memory.found_bin != 0;
  // Before the barrier: all threads read the 16 bytes that it is in.
  if (is_last && ThreadIndex() == 0) scratch.state.arrived = 0;
  SyncThreads();
  return is_last;
}

BATON_DEVICE void Finish(const SampleLaunch& launch, const SampleResult& result) {
  if (ThreadIndex() != 0) return;
  launch.results[BlockIndex().y] = result;
  launch.scratch[BlockIndex().y].state = {};
}

// The first launch: what decides a greedy request, and with top_k the bin that its last token is
// in.
BATON_KERNEL(kSplitThreads)
SampleInspectKernel(SampleLaunch launch) {
  AwaitPrevious();
  const SampleRequest& request = launch.requests[BlockIndex().y];
  SampleScratch& scratch = launch.scratch[BlockIndex().y];
  auto& memory = *reinterpret_cast<SelectMemory*>(SharedMemory());
  const Row raw = RawRow(launch, request);
  Row part = PartOf(raw);
  float* const changed = ChangedRow(launch, request);
  Inspected inspected = Inspect(part, changed, memory.scan);
  if (ThreadIndex() == 0) {
    AtomicMax(&scratch.state.raw_highest, inspected.highest);
    if (inspected.first_bad != 0) AtomicMax(&scratch.state.first_bad, inspected.first_bad);
  }
  if (changed != nullptr) {
    SyncThreads();
    AdjustLogits(launch, request, IdsOf(part), changed);
    part.logits = changed;
    inspected = Inspect(part, nullptr, memory.scan);
  }
  if (ThreadIndex() == 0) AtomicMax(&scratch.state.highest, inspected.highest);
  const bool greedy = IsGreedy(request);
  const bool counts = !greedy && HasTopK(request, launch.vocab);
  if (counts) {
    BuildFirstDigit(part, Tally{}, memory);
    AddHistogram(memory, scratch);
  }
  if (!IsLast(scratch, memory)) return;

  const Vec16 places = LoadFresh16(&scratch.state.highest);
  const Vec16 bad = LoadFresh16(&scratch.state.first_bad);
  SyncThreads();  // Finish writes what all threads have read
  if (counts) {
    FetchHistogram(scratch, memory);
    ClearHistogram(scratch);
  }
  const uint64_t highest = uint64_t{places.x[1]} << 32 | places.x[0];
  const uint64_t raw_highest = uint64_t{places.x[3]} << 32 | places.x[2];
  const uint64_t first_bad = uint64_t{bad.x[1]} << 32 | bad.x[0];
  if (first_bad != 0 || raw_highest == 0) return Finish(launch, NonFinite(raw, first_bad));
  if (highest == 0) return Finish(launch, NoTokenLeft());
  if (greedy) return Finish(launch, Sampled(highest));
  int low_bin = 0;
  if (counts) {
    low_bin = FindBin(memory.first, static_cast<uint64_t>(request.top_k), memory).bin;
  }
  if (ThreadIndex() != 0) return;
  scratch.state.high_begin = kBins - 1;
  scratch.state.high_end = scratch.state.low_bin = low_bin;
  scratch.state.next = counts ? SampleScratch::kGather : SampleScratch::kWeigh;
}

// The weights' first digits: their sum, and the bins that the token can be in.
BATON_DEVICE void Weigh(const SampleRequest& request, const Row& part, const Tally& weights,
                        SampleScratch& scratch, SelectMemory& memory) {
  BuildFirstDigit(part, weights, memory);
  AddHistogram(memory, scratch);
  if (!IsLast(scratch, memory)) return;
  FetchHistogram(scratch, memory);
  const uint64_t total = ScanBlock(SumOf(memory.first, OwnBins()), memory.scan).all;
  // top_p's last token, the lowest that may be chosen, or the chosen one's bin itself.
  const bool cuts = request.top_p < 1;
  const uint64_t target = cuts ? KeptShare(request, total) : RandomTarget(request, total);
  const FoundBin low = FindBin(memory.first, target, memory);
  FoundBin begin = low, end = low;
  if (cuts && request.min_p > 0) {  // the sum of what min_p leaves is not known
    begin = {kBins - 1, 0};
  } else if (cuts) {
    // What top_p leaves reaches into the bin by something between nothing and all of it, so the
    // random share of that is here. Lower totals have lower shares.
    const uint64_t most = low.before + ValueOf(memory.first[low.bin]);
    begin = FindBin(memory.first, RandomTarget(request, low.before + 1), memory);
    end = FindBin(memory.first, RandomTarget(request, most), memory);
  }
  if (ThreadIndex() != 0) return;
  scratch.state.total = total;
  scratch.state.before = begin.before;
  scratch.state.gap =
      end.bin == low.bin ? 0 : low.before - end.before - ValueOf(memory.first[end.bin]);
  scratch.state.high_begin = begin.bin;
  scratch.state.high_end = end.bin;
  scratch.state.low_bin = low.bin;
  scratch.state.next = SampleScratch::kGather;
}

// Lists a part's tokens that the token is one of, or that filters have to look at.
BATON_DEVICE void Gather(const SampleLaunch& launch, const Row& part, uint64_t last_kept,
                         SampleScratch& scratch, SelectMemory& memory) {
  const auto low = static_cast<uint32_t>(scratch.state.low_bin);
  const auto high_begin = static_cast<uint32_t>(scratch.state.high_begin);
  const auto high_end = static_cast<uint32_t>(scratch.state.high_end);
  const auto place_of_wanted = [&](int id, float logit) {
    const uint32_t key = KeyOf(logit);
    const uint32_t bin = key >> kFirstShift;
    const uint64_t place = PlaceOf(key, id);
    const bool listed = bin == low || (bin >= high_end && bin <= high_begin);
    return listed && place >= last_kept ? place : 0;
  };
  uint64_t count = 0;
  ForTokens(part, [&](int id, float logit) { count += place_of_wanted(id, logit) != 0 ? 1 : 0; });
  const Scan scan = ScanBlock(count, memory.scan);
  if (scan.all == 0) return;
  if (ThreadIndex() == 0) {
    memory.found_before = AtomicAdd(&scratch.state.listed, static_cast<uint32_t>(scan.all));
  }
  SyncThreads();
  uint64_t at = memory.found_before + scan.before;
  ForTokens(part, [&](int id, float logit) {
    const uint64_t place = place_of_wanted(id, logit);
    if (place == 0) return;
    if (at < static_cast<uint64_t>(launch.most_listed)) scratch.places[at] = place;
    ++at;
  });
}

// The later launches.
BATON_KERNEL_RESIDENT(kSplitThreads, 1)
SampleDrawKernel(SampleLaunch launch) {
  AwaitPrevious();
  SampleScratch& scratch = launch.scratch[BlockIndex().y];
  const int step = scratch.state.next;
  if (step == SampleScratch::kNothing) return;
  const SampleRequest& request = launch.requests[BlockIndex().y];
  auto& memory = *reinterpret_cast<SelectMemory*>(SharedMemory());
  Row row = RawRow(launch, request);
  if (const float* const changed = ChangedRow(launch, request)) row.logits = changed;
  const Row part = PartOf(row);
  const uint64_t highest = scratch.state.highest;
  const Tally weights = WeightsOf(request, highest);
  if (step == SampleScratch::kWeigh) return Weigh(request, part, weights, scratch, memory);
  const uint64_t total = scratch.state.total;
  const ListedSums sums = {scratch.state.before, scratch.state.gap, scratch.state.low_bin};
  Gather(launch, part, weights.last_kept, scratch, memory);
  if (!IsLast(scratch, memory)) return;

  const int listed = static_cast<int>(LoadFresh16(&scratch.state.first_bad).x[3]);
  const TokenList list = {scratch.places, listed};
  uint64_t place;
  if (listed <= launch.most_sorted) {
    place = DrawSorted(list, weights, request, sums, total, memory);
  } else {
    if (total != 0) FetchHistogram(scratch, memory);
    place = listed <= launch.most_listed ? Draw(list, highest, request, total, memory)
                                         : Draw(row, highest, request, total, memory);
  }
  if (total != 0) ClearHistogram(scratch);
  Finish(launch, Sampled(place));
}

// Of a block that has a row to itself: 16 logits a thread fill a pass's loads.
int ThreadsFor(int vocab) {
  int threads = kWarpLanes;
  while (threads < kMaxThreads && threads * 16 < vocab) threads *= 2;
  return threads;
}

}  // namespace

int SampleLaunches(float temperature, int top_k, int vocab) {
  if (temperature == 0 || top_k == 1) return 1;
  return top_k > 0 && top_k < vocab ? 2 : 3;
}

SampleShape SampleShapeFor(int requests, int vocab, int multiprocessors) {
  SampleShape shape;
  if (requests > kMaxSplitSamples) return shape;
  const int parts = (vocab + kPartTokens - 1) / kPartTokens;
  shape.blocks = std::clamp(multiprocessors / std::max(requests, 1), 1, parts);
  return shape;
}

void LaunchSample(const SampleLaunch& launch, int requests, const SampleShape& shape,
                  Stream stream) {
  if (requests == 0) return;
  const auto count = static_cast<unsigned>(requests);
  if (shape.blocks == 1) {
    const int threads = shape.threads == 0 ? ThreadsFor(launch.vocab) : shape.threads;
    return Launch(SampleKernel, {count, 1, 1}, threads, sizeof(SelectMemory), stream, launch);
  }
  const int threads = shape.threads == 0 ? kSplitThreads : shape.threads;
  SampleLaunch split = launch;
  split.most_sorted = shape.most_sorted;
  split.most_listed = shape.most_listed;
  const GridSize grid = {static_cast<unsigned>(shape.blocks), count, 1};
  Launch(SampleInspectKernel, grid, threads, sizeof(SelectMemory), stream, split);
  for (int i = 1; i < shape.launches; ++i) {
    Launch(SampleDrawKernel, grid, threads, sizeof(SelectMemory), stream, split);
  }
}

}  // namespace baton::backend::cuda
