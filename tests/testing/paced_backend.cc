#include "tests/testing/paced_backend.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/backend/cpu/cpu_backend.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/prefill_work.h"
#include "common/base/status_macros.h"

namespace baton::testing {
namespace {

class RealTimer final : public PaceTimer {
 public:
  absl::Duration Now() const override { return Clock::Real().SinceStart(); }
  void WaitUntil(absl::Duration time) const override {
    for (absl::Duration now = Now(); now < time; now = Now()) absl::SleepFor(time - now);
  }
};

class PacedEvent final : public backend::Event {
 public:
  PacedEvent(std::unique_ptr<backend::Event> inner, absl::Duration end, const PaceTimer& timer)
      : inner_(std::move(inner)), end_(end), timer_(timer) {}
  bool Done() const override { return timer_.Now() >= end_ && inner_->Done(); }
  void Wait() const override {
    inner_->Wait();
    timer_.WaitUntil(end_);
  }

 private:
  const std::unique_ptr<backend::Event> inner_;
  const absl::Duration end_;
  const PaceTimer& timer_;
};

}  // namespace

const PaceTimer& PaceTimer::Real() {
  static const RealTimer timer;
  return timer;
}

absl::Duration PacedStepTime(const PacedCosts& costs,
                             absl::Span<const backend::SequenceRows> sequences) {
  PrefillWork prompts;
  double decoding = 0, context_tokens = 0;
  for (const backend::SequenceRows& rows : sequences) {
    if (rows.row_count == 1) {
      ++decoding;
      context_tokens += rows.context;
    } else {
      prompts.Add(rows.row_count, rows.context);
    }
  }
  const auto& [prompt_step, token, pair] = costs.prefill_us;
  const auto& [decode_step, sequence, context] = costs.decode_us;
  const double fixed =
      std::max(prompts.tokens > 0 ? prompt_step : 0, decoding > 0 ? decode_step : 0);
  return absl::Microseconds(fixed + token * prompts.tokens + pair * prompts.pairs +
                            sequence * decoding + context * context_tokens);
}

void AddPacedFlags(CLI::App& app, PacedCosts& costs) {
  // CLI::Range takes NaN for a number within it.
  const CLI::Validator microseconds(
      [](const std::string& text) {
        double value = 0;
        return absl::SimpleAtod(text, &value) && value >= 0 && value <= 1e9
                   ? std::string()
                   : absl::StrCat(text, " given, expected 0 to 1e9 microseconds");
      },
      "");
  app.add_option("--device-prefill-cost", costs.prefill_us,
                 "Microseconds that the paced device takes for prompts: FIXED,TOKEN,PAIR for a "
                 "step, each prompt token, and each pair of a token and one that it attends to")
      ->required()
      ->delimiter(',')
      ->check(microseconds);
  app.add_option("--device-decode-cost", costs.decode_us,
                 "Microseconds that it takes to decode: FIXED,SEQUENCE,CONTEXT for a step, each "
                 "sequence, and each token of their context")
      ->required()
      ->delimiter(',')
      ->check(microseconds);
}

PacedBackend::PacedBackend(std::unique_ptr<backend::Backend> inner, const PacedCosts& costs,
                           const PaceTimer& timer)
    : ForwardingBackend(std::move(inner)), costs_(costs), timer_(timer) {
  BATON_CHECK(!samples_on_device());
}

std::string PacedBackend::Description() const {
  return absl::StrCat("paced (prompts ", absl::StrJoin(costs_.prefill_us, ","), " us, decoding ",
                      absl::StrJoin(costs_.decode_us, ","), " us) ", inner().Description());
}

absl::Status PacedBackend::Prepare(const backend::StepLimits& limits) {
  layers_ = std::max(1, limits.layers);
  return ForwardingBackend::Prepare(limits);
}

std::unique_ptr<backend::DeviceBatch> PacedBackend::Upload(const backend::RaggedBatch& batch) {
  uploaded_ = PacedStepTime(costs_, batch.sequences);
  return ForwardingBackend::Upload(batch);
}

void PacedBackend::BeginStep() {
  if (!uploaded_) return;
  step_begin_ = std::max(timer_.Now(), step_end());
  step_time_ = *uploaded_;
  reached_ = step_begin_;
  uploaded_.reset();
}

void PacedBackend::Embed(const backend::DeviceBatch& batch, const backend::Tensor& table,
                         float scale, const backend::Tensor& out) {
  BeginStep();
  ForwardingBackend::Embed(batch, table, scale, out);
}

void PacedBackend::EmbedPacked(const backend::DeviceBatch& batch,
                               const backend::PackedMatrix& table, float scale,
                               const backend::Tensor& out) {
  BeginStep();
  ForwardingBackend::EmbedPacked(batch, table, scale, out);
}

void PacedBackend::PassLayer(int layer) {
  const double share = std::min(1.0, (layer + 1.0) / layers_);
  reached_ = std::max(reached_, step_begin_ + share * step_time_);
}

void PacedBackend::RopeWriteKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                               const backend::RopeWriteArgs& args) {
  ForwardingBackend::RopeWriteKv(batch, pool, args);
  PassLayer(args.layer);
}

void PacedBackend::WriteLatentKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                                 const backend::LatentWriteArgs& args) {
  ForwardingBackend::WriteLatentKv(batch, pool, args);
  PassLayer(args.layer);
}

std::unique_ptr<backend::Event> PacedBackend::RecordEvent() {
  return std::make_unique<PacedEvent>(ForwardingBackend::RecordEvent(), reached_, timer_);
}

void PacedBackend::CopyToHost(void* host, const void* device, size_t size_bytes) {
  ForwardingBackend::CopyToHost(host, device, size_bytes);
  timer_.WaitUntil(step_end());
}

std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>(const backend::BackendOptions&)>
PacedMaker(const PacedCosts& costs, const PaceTimer& timer) {
  return [costs, &timer](const backend::BackendOptions& options)
             -> absl::StatusOr<std::unique_ptr<backend::Backend>> {
    BATON_ASSIGN_OR_RETURN(auto cpu, backend::MakeCpuBackend(options));
    return std::make_unique<PacedBackend>(std::move(cpu), costs, timer);
  };
}

}  // namespace baton::testing
