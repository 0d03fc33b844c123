#include "common/backend/cuda/sampling/device_sampler.h"

#include <algorithm>
#include <cstring>

#include "absl/memory/memory.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
absl::StatusOr<std::unique_ptr<DeviceSampler>> DeviceSampler::Make(const StepLimits& limits,
                                                                   void* device, Runtime& runtime,
                                                                   Stream stream) {
  const Layout layout = LayoutFor(limits);
  auto sampler = absl::WrapUnique(new DeviceSampler(layout, device, runtime, stream));
  const size_t result_bytes = layout.result_count * sizeof(SampleResult);
  for (size_t buffer = 0; buffer < kBuffers; ++buffer) {
    BATON_ASSIGN_OR_RETURN(void* const requests, runtime.AllocatePinned(layout.room.bytes));
    BATON_ASSIGN_OR_RETURN(void* const results, runtime.AllocatePinned(result_bytes));
    sampler->requests_[buffer].pinned = static_cast<std::byte*>(requests);
    sampler->drawn_[buffer].pinned = static_cast<SampleResult*>(results);
  }
  return sampler;
}

void DeviceSampler::Enqueue(const Tensor& logits, int64_t token_count,
                            absl::Span<const SampleRow> rows, const int32_t* input_tokens,
                            const SamplingUpload* packed, const std::byte* d_packed) {
  BATON_CHECK_LE(rows.size(), layout_.result_count);
  BATON_CHECK_LT(enqueued_ - collected_, kBuffers) << "draws that are not collected";
  BATON_CHECK(logits.dtype == DType::kF32);
  BATON_CHECK(token_count > 0 && token_count <= logits.cols &&
              token_count <= layout_.workspace_stride);
  BATON_CHECK_EQ(logits.row_stride % 8, 0);
  for (const SampleRow& row : rows) {
    BATON_CHECK(row.logit_row >= 0 && row.logit_row < logits.rows) << "row " << row.logit_row;
    BATON_CHECK(row.drawn_row == kNotDrawn || input_tokens != nullptr) << "row " << row.logit_row;
  }
  SampleLaunch launch = {};
  launch.logits = static_cast<const float*>(logits.data);
  launch.logits_stride = logits.row_stride;
  launch.vocab = static_cast<int>(token_count);
  launch.input_tokens = input_tokens;
  launch.adjusted = reinterpret_cast<float*>(device_ + layout_.adjusted);
  launch.seen = reinterpret_cast<uint32_t*>(device_ + layout_.seen);
  launch.adjusted_quads = reinterpret_cast<uint8_t*>(device_ + layout_.adjusted_quads);
  launch.workspace_stride = layout_.workspace_stride;
  launch.scratch = reinterpret_cast<SampleScratch*>(device_ + layout_.scratch);
  auto* const results = reinterpret_cast<SampleResult*>(device_ + layout_.results);
  const auto draw = [&](absl::Span<const SampleRow> some) {
    const int count = static_cast<int>(some.size());
    SampleShape shape = SampleShapeFor(count, launch.vocab, runtime_.properties().multiprocessors);
    shape.launches = 1;
    for (const SampleRow& row : some) {
      shape.launches =
          std::max(shape.launches, SampleLaunches(row.temperature, row.top_k, launch.vocab));
    }
    LaunchSample(launch, count, shape, stream_);
  };
  size_t done = 0;
  if (packed != nullptr) {
    packed->PointTo(d_packed, launch);
    launch.results = results;
    draw(rows);
    done = rows.size();
  }
  while (done < rows.size()) {
    const size_t count = upload_.Pack(rows.subspan(done), layout_.room);
    BATON_CHECK_GT(count, size_t{0}) << "no room for a row of " << rows[done].tokens.size()
                                     << " tokens in " << layout_.room.bytes << " bytes";
    const absl::Span<const std::byte> bytes = upload_.bytes();
    BATON_CHECK_LE(bytes.size(), layout_.room.bytes);
    Requests& half = requests_[next_requests_];
    next_requests_ = (next_requests_ + 1) % kBuffers;
    if (half.copied != nullptr) half.copied->Wait();
    std::memcpy(half.pinned, bytes.data(), bytes.size());
    std::byte* const requests = device_ + layout_.requests;
    LaunchUpload({.pinned = half.pinned,
                  .device = requests,
                  .size_bytes = static_cast<int64_t>(bytes.size())},
                 stream_);
    half.copied = runtime_.Record(stream_);
    upload_.PointTo(requests, launch);
    launch.results = results + done;
    draw(rows.subspan(done, count));
    done += count;
  }
  Drawn& drawn = drawn_[enqueued_++ % kBuffers];
  drawn.count = rows.size();
  runtime_.CopyToHost(drawn.pinned, results, rows.size() * sizeof(SampleResult), stream_);
  drawn.copied = runtime_.Record(stream_);
}

void DeviceSampler::Collect(absl::Span<SampleOutcome> outcomes) {
  BATON_CHECK_LT(collected_, enqueued_) << "nothing was drawn";
  Drawn& drawn = drawn_[collected_++ % kBuffers];
  BATON_CHECK_EQ(outcomes.size(), drawn.count);
  drawn.copied->Wait();
  std::transform(drawn.pinned, drawn.pinned + drawn.count, outcomes.begin(), OutcomeOf);
}

}  // namespace baton::backend::cuda
