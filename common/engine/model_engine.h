// The one Engine that runs a model. Private to this library.
#ifndef BATON_COMMON_ENGINE_MODEL_ENGINE_H_
#define BATON_COMMON_ENGINE_MODEL_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/engine/device_draws.h"
#include "common/engine/engine.h"
#include "common/engine/engine_shape.h"
#include "common/engine/memory_plan.h"

namespace baton::engine {

class ModelEngine final : public Engine {
 public:
  absl::Status Initialize(const EngineOptions& options);
  // As the engine of the model's MTP head, on the model's device. REQUIRES: model.config().mtp.
  absl::Status InitializeHead(const EngineOptions& options, const ModelEngine& model);
  std::vector<StepResult> Step(const Batch& batch, model::LayerObserver* observer) override;
  bool RunsAhead(const Batch& batch) const override;
  void Launch(const Batch& batch) override;
  std::vector<StepResult> Collect() override;
  void CopyPages(absl::Span<const int32_t> sources, absl::Span<const int32_t> targets) override {
    backend_->CopyBlocks(pool_, sources, targets);
    if (copier_ != nullptr) backend_->RecordEvent()->Wait();  // it may write to the sources next
  }
  void ReadPages(absl::Span<const int32_t> pages, std::byte* host) override {
    for (size_t i = 0; i < pages.size(); ++i) {
      backend_->CopyToHost(host + i * page_bytes(), pool_.Chunk(pages[i], 0), page_bytes());
    }
  }
  void WritePages(absl::Span<const int32_t> pages, const std::byte* host) override {
    for (size_t i = 0; i < pages.size(); ++i) {
      backend_->CopyToDevice(pool_.Chunk(pages[i], 0), host + i * page_bytes(), page_bytes());
    }
    if (copier_ != nullptr) backend_->RecordEvent()->Wait();  // it may read the pages next
  }
  absl::StatusOr<std::shared_ptr<backend::DeviceLinks>> MakeDeviceLinks() override {
    return backend_->MakeDeviceLinks(pool_);
  }
  Engine* mtp_head() override { return mtp_head_.get(); }
  std::string Description() const override {
    const std::string device = backend_->Description();
    return has_arena_ ? absl::StrCat(device, "; ", plan_.ToString()) : device;
  }
  std::string DeviceKind() const override {
    const int layers = plan_.experts_on_host;
    return layers == 0
               ? backend_->Kind()
               : absl::StrCat(backend_->Kind(), ", experts of ", layers, " layers on the host");
  }

 private:
  // A row whose logits are wanted.
  struct WantedRow {
    size_t entry;
    int row;  // of the entry
  };

  struct Launched {
    std::vector<StepResult> results;
    DeviceDraws draws;
    std::vector<int> draw_of;  // each entry's, by number; -1: none
    std::unique_ptr<backend::Event> end;
  };

  absl::Status MakeBackend(const EngineOptions& options);
  absl::Status PlanMemory(const EngineOptions& options);
  model::ScratchNeeds scratch() const {
    return {.gate_up = backend_->needs_gate_up(), .experts_at_once = backend_->experts_at_once()};
  }
  absl::Status MakePool(const EngineOptions& options);
  void WarmUp(EngineOptions::WarmUp what);
  // Collects the batch's rows; wanted_ has those of its logits.
  void Gather(const Batch& batch);
  // Enqueues the forward pass of what was gathered.
  backend::Tensor Forward(absl::Span<const backend::SampleRow> draws,
                          model::LayerObserver* observer);
  void AddEntry(const BatchEntry& entry, size_t index);
  // What is wanted of row `wanted` - `first` of `logits`: now, which returns true, or when draws_
  // run.
  bool UseRow(size_t wanted, size_t first, const backend::Tensor& logits, const Batch& batch,
              std::vector<StepResult>& results);
  // Returns the hidden state of the row `wanted` of wanted_.
  absl::Span<const float> HiddenState(int wanted);
  // logits_ are of the entry's row.
  void UseLogits(const BatchEntry& entry, int row, StepResult& result) const;
  size_t page_bytes() const { return static_cast<size_t>(pool_.block_stride_bytes); }

  // Destroyed in reverse order: the backend outlives what it made.
  std::shared_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Buffer> pool_memory_;
  std::unique_ptr<backend::KvCopier> copier_;
  std::unique_ptr<model::Transformer> transformer_;
  std::unique_ptr<ModelEngine> mtp_head_;  // null: there is none
  EngineShape shape_;
  MemoryPlan plan_;
  bool has_arena_ = false;  // the plan bounds what fits
  // Scratch of Step, kept to avoid allocation.
  std::vector<int32_t> tokens_;
  std::vector<int32_t> drawn_;        // of tokens_, or empty
  std::vector<float> hidden_before_;  // of an MTP head: of each of tokens_
  std::vector<backend::SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<WantedRow> wanted_;  // one a logit row
  std::vector<float> logits_;      // of one row
  std::vector<float> hidden_states_;  // of the rows from first_hidden_ on, as they were read
  int first_hidden_ = 0;
  DeviceDraws draws_;
  std::deque<Launched> launched_;  // oldest first; draws refer to results
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_MODEL_ENGINE_H_
