#include "common/backend/cuda/device_sampler.h"

#include <algorithm>
#include <cstring>

#include "absl/memory/memory.h"
#include "common/backend/cuda/arena.h"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
absl::StatusOr<std::unique_ptr<DeviceSampler>> DeviceSampler::Make(const StepLimits& limits,
                                                                   void* device, Runtime& runtime,
                                                                   Stream stream) {
  const Layout layout = LayoutFor(limits);
  auto sampler = absl::WrapUnique(new DeviceSampler(layout, device, runtime, stream));
  BATON_ASSIGN_OR_RETURN(void* const requests, runtime.AllocatePinned(layout.room.bytes));
  BATON_ASSIGN_OR_RETURN(void* const results,
                         runtime.AllocatePinned(layout.result_count * sizeof(SampleResult)));
  sampler->pinned_requests_ = static_cast<std::byte*>(requests);
  sampler->pinned_results_ = static_cast<SampleResult*>(results);
  return sampler;
}

void DeviceSampler::Sample(const Tensor& logits, int64_t token_count,
                           absl::Span<const SampleRow> rows, absl::Span<SampleOutcome> outcomes) {
  BATON_CHECK_EQ(rows.size(), outcomes.size());
  BATON_CHECK_LE(rows.size(), layout_.result_count);
  BATON_CHECK(logits.dtype == DType::kF32);
  BATON_CHECK(token_count > 0 && token_count <= logits.cols &&
              token_count <= layout_.workspace_stride);
  BATON_CHECK_EQ(logits.row_stride % 8, 0);
  for (const SampleRow& row : rows) {
    BATON_CHECK(row.logit_row >= 0 && row.logit_row < logits.rows) << "row " << row.logit_row;
  }
  SampleLaunch launch = {};
  launch.logits = static_cast<const float*>(logits.data);
  launch.logits_stride = logits.row_stride;
  launch.vocab = static_cast<int>(token_count);
  launch.adjusted = reinterpret_cast<float*>(device_ + layout_.adjusted);
  launch.seen = reinterpret_cast<uint32_t*>(device_ + layout_.seen);
  launch.workspace_stride = layout_.workspace_stride;
  launch.results = reinterpret_cast<SampleResult*>(device_ + layout_.results);
  for (size_t done = 0; done < rows.size();) {
    const size_t count = upload_.Pack(rows.subspan(done), layout_.room);
    BATON_CHECK_LE(upload_.bytes().size(), layout_.room.bytes);
    // What the launch before copied from here is over: its results have been waited for.
    std::memcpy(pinned_requests_, upload_.bytes().data(), upload_.bytes().size());
    std::byte* const requests = device_ + layout_.requests;
    runtime_.CopyToDevice(requests, pinned_requests_, upload_.bytes().size(), stream_);
    upload_.PointTo(requests, launch);
    LaunchSample(launch, static_cast<int>(count), stream_);
    runtime_.CopyToHost(pinned_results_, launch.results, count * sizeof(SampleResult), stream_);
    runtime_.Synchronize(stream_);
    std::transform(pinned_results_, pinned_results_ + count,
                   outcomes.begin() + static_cast<ptrdiff_t>(done), OutcomeOf);
    done += count;
  }
}

}  // namespace baton::backend::cuda
