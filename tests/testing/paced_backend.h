// A device whose steps take the time of a model of them. The inner backend computes the results, of
// a model so small that its own time hardly counts, and a caller that reads results waits, without
// a core, until the modelled time is over. So many workers, each with such a device, share a few
// cores, and behave as if each had a device for itself: only the arithmetic is not real.
//
// A step begins when its tokens are embedded, and takes the modelled time or, where that is longer,
// the time that the inner backend takes. A layer's KV counts as written when the step's share of
// that layer is over, as on a device that computes layer by layer. A draft model runs on a second
// device of the same pace.
#ifndef BATON_TESTS_TESTING_PACED_BACKEND_H_
#define BATON_TESTS_TESTING_PACED_BACKEND_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/backend_options.h"
#include "tests/testing/forwarding_backend.h"

namespace CLI {
class App;
}

namespace baton::testing {

// What a step costs, in microseconds, in the terms of PrefillCost and DecodeCost (worker.proto).
struct PacedCosts {
  std::array<double, 3> prefill_us = {};  // for a step, a prompt token, a pair of tokens
  std::array<double, 3> decode_us = {};   // for a step, a sequence, a token of context
};

// The time of a step. Sequences with one row decode, and the others are prompts; so a decoding
// sequence with drafts costs what a prompt does. A step of both has the larger of the two fixed
// parts, since it reads the weights once.
absl::Duration PacedStepTime(const PacedCosts& costs,
                             absl::Span<const backend::SequenceRows> sequences);

// Adds --device-prefill-cost and --device-decode-cost, which are required. `costs` outlives `app`.
void AddPacedFlags(CLI::App& app, PacedCosts& costs);

// The device's clock. Thread-safe.
class PaceTimer {
 public:
  virtual ~PaceTimer() = default;
  // Monotonic, since an arbitrary point.
  virtual absl::Duration Now() const = 0;
  // Returns once Now() is `time` or later.
  virtual void WaitUntil(absl::Duration time) const = 0;

  // The machine's, which is never destroyed.
  static const PaceTimer& Real();
};

// Thread: as Backend.
class PacedBackend final : public ForwardingBackend {
 public:
  // `timer` outlives the backend and its events. REQUIRES: `inner` does not draw tokens, so that
  // results are read by CopyToHost alone.
  PacedBackend(std::unique_ptr<backend::Backend> inner, const PacedCosts& costs,
               const PaceTimer& timer);

  // Names the costs, since routers take workers with equal texts for equally fast.
  std::string Description() const override;
  absl::Status Prepare(const backend::StepLimits& limits) override;
  absl::StatusOr<std::unique_ptr<backend::Buffer>> AllocateShared(size_t size_bytes) override {
    return inner().AllocateShared(size_bytes);
  }
  std::unique_ptr<backend::DeviceBatch> Upload(const backend::RaggedBatch& batch) override;
  void Embed(const backend::DeviceBatch& batch, const backend::Tensor& table, float scale,
             const backend::Tensor& out) override;
  void EmbedPacked(const backend::DeviceBatch& batch, const backend::PackedMatrix& table,
                   float scale, const backend::Tensor& out) override;
  void RopeWriteKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                   const backend::RopeWriteArgs& args) override;
  void WriteLatentKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                     const backend::LatentWriteArgs& args) override;
  std::unique_ptr<backend::Event> RecordEvent() override;
  void CopyToHost(void* host, const void* device, size_t size_bytes) override;

 private:
  // The batch that was uploaded last enters the model. A batch that is never embedded is a part of
  // the running step: its last rows.
  void BeginStep();
  // The KV of `layer` is computed.
  void PassLayer(int layer);
  absl::Duration step_end() const { return step_begin_ + step_time_; }

  const PacedCosts costs_;
  const PaceTimer& timer_;
  int layers_ = 1;                          // with KV
  std::optional<absl::Duration> uploaded_;  // the time of the last batch, until it is embedded
  absl::Duration step_begin_, step_time_;   // of the last step
  absl::Duration reached_;                  // when what is enqueued so far is computed
};

// For EngineOptions.make_backend and WorkerOptions.make_backend: the CPU at the pace of `costs`.
std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>(const backend::BackendOptions&)>
PacedMaker(const PacedCosts& costs, const PaceTimer& timer = PaceTimer::Real());

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_PACED_BACKEND_H_
