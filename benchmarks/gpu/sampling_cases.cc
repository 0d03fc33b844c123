#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/sampling/sampling_upload.h"
#include "common/base/check.h"

namespace baton::gpu_bench {
namespace {

using backend::SampleRow;
using backend::cuda::SampleLaunch;
using backend::cuda::SampleResult;
using backend::cuda::SamplingUpload;

enum class Kind { kGreedy, kTopP, kTopK, kPenalties };

void TimeOne(KernelBench& bench, int batch, Kind kind) {
  BenchDevice& device = bench.device;
  const int vocab = bench.grid.vocab;
  const char* const kind_name = kind == Kind::kGreedy ? "greedy"
                                : kind == Kind::kTopP ? "top_p"
                                : kind == Kind::kTopK ? "top_k"
                                                      : "penalties";
  const std::string name = absl::StrCat(kind_name, " b", batch);
  if (!bench.Wanted("sampling", name)) return;
  Row row = bench.Begin("sampling", name);
  row.Number("batch", batch).Number("vocab", vocab);

  // Logits as a model has them: most are of no account.
  const int64_t stride = (vocab + 7) / 8 * 8;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(static_cast<size_t>(stride));
  for (float& logit : logits) logit = normal(random);
  std::vector<int32_t> history(static_cast<size_t>(bench.grid.history));
  for (int32_t& id : history) id = static_cast<int32_t>(random() % static_cast<unsigned>(vocab));

  std::vector<SampleRow> rows;
  for (int i = 0; i < batch; ++i) {
    SampleRow each;
    each.logit_row = i;
    each.temperature = kind == Kind::kGreedy ? 0.0f : 0.8f;
    each.seed = static_cast<uint64_t>(i);
    if (kind != Kind::kGreedy) each.top_p = 0.95f;
    if (kind == Kind::kTopK) each.top_k = 50;
    if (kind == Kind::kPenalties) {
      each.repetition_penalty = 1.1f;
      each.frequency_penalty = 0.1f;
      each.tokens = history;
      each.prompt_tokens = static_cast<int>(history.size() / 2);
    }
    rows.push_back(each);
  }
  SamplingUpload upload;
  const backend::cuda::SamplingCapacity room = {
      static_cast<size_t>(batch) * SamplingUpload::MaxBytes(history.size(), 0, 0) + 4096, batch};
  BATON_CHECK_EQ(upload.Pack(rows, room), rows.size());

  SampleLaunch launch = {};
  float* const device_logits = device.Take<float>(batch * stride);
  launch.logits = device_logits;
  launch.logits_stride = stride;
  launch.vocab = vocab;
  launch.adjusted = device.Take<float>(batch * stride);
  launch.adjusted_quads = device.Take<uint8_t>(batch * stride / 4);
  launch.seen = device.Take<uint32_t>(batch * stride);
  launch.workspace_stride = stride;
  launch.results = device.Take<SampleResult>(batch);
  launch.scratch = device.Take<backend::cuda::SampleScratch>(batch);
  std::byte* const requests = device.Take(room.bytes);
  if (device_logits == nullptr || launch.adjusted == nullptr || launch.adjusted_quads == nullptr ||
      launch.seen == nullptr || launch.results == nullptr || launch.scratch == nullptr ||
      requests == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  for (int i = 0; i < batch; ++i) {
    device.Copy(device_logits + i * stride, logits.data(), logits.size() * sizeof(float));
  }
  device.Zero(launch.adjusted_quads, static_cast<size_t>(batch * stride / 4));
  device.Zero(launch.seen, static_cast<size_t>(batch * stride) * sizeof(uint32_t));
  device.Zero(launch.scratch, static_cast<size_t>(batch) * sizeof(backend::cuda::SampleScratch));
  device.Copy(requests, upload.bytes().data(), upload.bytes().size());
  upload.PointTo(requests, launch);
  backend::cuda::SampleShape shape =
      backend::cuda::SampleShapeFor(batch, vocab, device.properties().multiprocessors);
  shape.launches = backend::cuda::SampleLaunches(rows[0].temperature, rows[0].top_k, vocab);
  const double seconds = device.Seconds(
      [&](int) { backend::cuda::LaunchSample(launch, batch, shape, device.stream()); });
  row.Took(seconds, WorkOf(backend::cuda::SampleFloor(batch, vocab))).Print();
}

}  // namespace

void TimeSampling(KernelBench& bench) {
  for (const int batch : bench.grid.batches) {
    for (const Kind kind : {Kind::kGreedy, Kind::kTopP, Kind::kTopK, Kind::kPenalties}) {
      TimeOne(bench, batch, kind);
    }
  }
}

}  // namespace baton::gpu_bench
