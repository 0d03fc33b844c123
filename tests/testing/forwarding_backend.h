// A backend that hands everything on to another: what tests derive from to be another device. But
// it records no steps: a step that is repeated calls no operation. And what a device may do in one
// operation it does in two, as Backend does.
#ifndef BATON_TESTS_TESTING_FORWARDING_BACKEND_H_
#define BATON_TESTS_TESTING_FORWARDING_BACKEND_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/backend/backend.h"

namespace baton::testing {

class ForwardingBackend : public backend::Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<backend::Backend> inner) : inner_(std::move(inner)) {}

  std::string Description() const override { return inner_->Description(); }
  std::string Numerics() const override { return inner_->Numerics(); }
  backend::DType activation_dtype() const override { return inner_->activation_dtype(); }
  absl::Status Prepare(const backend::StepLimits& limits) override {
    return inner_->Prepare(limits);
  }
  size_t WorkspaceBytes(const backend::StepLimits& limits) const override {
    return inner_->WorkspaceBytes(limits);
  }
  std::optional<size_t> FreeBytes() const override { return inner_->FreeBytes(); }
  absl::StatusOr<std::unique_ptr<backend::Buffer>> Allocate(size_t size_bytes) override {
    return inner_->Allocate(size_bytes);
  }
  void CopyToDevice(void* device, const void* host, size_t size_bytes) override {
    inner_->CopyToDevice(device, host, size_bytes);
  }
  void CopyToHost(void* host, const void* device, size_t size_bytes) override {
    inner_->CopyToHost(host, device, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Pack(
      absl::Span<const backend::HostMatrix> stacked) override {
    return inner_->Pack(stacked);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackQuantized(
      absl::Span<const backend::QuantizedHostMatrix> stacked) override {
    return inner_->PackQuantized(stacked);
  }
  bool packs_any() const override { return inner_->packs_any(); }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackAny(
      absl::Span<const backend::AnyHostMatrix> stacked) override {
    return inner_->PackAny(stacked);
  }
  backend::MatrixPacker* host_packer() override { return inner_->host_packer(); }
  absl::StatusOr<std::unique_ptr<backend::RopeTable>> MakeRopeTable(const backend::RopeSpec& spec,
                                                                    int max_positions) override {
    return inner_->MakeRopeTable(spec, max_positions);
  }
  std::unique_ptr<backend::DeviceBatch> Upload(const backend::RaggedBatch& batch) override {
    return inner_->Upload(batch);
  }
  std::unique_ptr<backend::Event> RecordEvent() override { return inner_->RecordEvent(); }
  std::unique_ptr<backend::KvCopier> MakeKvCopier(const backend::KvPool& pool) override {
    return inner_->MakeKvCopier(pool);
  }
  absl::StatusOr<std::shared_ptr<backend::DeviceLinks>> MakeDeviceLinks(
      const backend::KvPool& pool) override {
    return inner_->MakeDeviceLinks(pool);
  }
  void Embed(const backend::DeviceBatch& batch, const backend::Tensor& table, float scale,
             const backend::Tensor& out) override {
    inner_->Embed(batch, table, scale, out);
  }
  void EmbedPacked(const backend::DeviceBatch& batch, const backend::PackedMatrix& table,
                   float scale, const backend::Tensor& out) override {
    inner_->EmbedPacked(batch, table, scale, out);
  }
  bool embeds_packed(backend::DType elements) const override {
    return inner_->embeds_packed(elements);
  }
  void Norm(const backend::NormArgs& args) override { inner_->Norm(args); }
  void MatMul(const backend::Tensor& x, const backend::PackedMatrix& weight,
              const backend::Buffer* bias, const backend::Tensor& out) override {
    inner_->MatMul(x, weight, bias, out);
  }
  void RopeWriteKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                   const backend::RopeWriteArgs& args) override {
    inner_->RopeWriteKv(batch, pool, args);
  }
  void WriteLatentKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                     const backend::LatentWriteArgs& args) override {
    inner_->WriteLatentKv(batch, pool, args);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackHeads(
      absl::Span<const backend::HostMatrix> heads) override {
    return inner_->PackHeads(heads);
  }
  void MatMulHeads(const backend::HeadProductArgs& args) override { inner_->MatMulHeads(args); }
  void Attention(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                 const backend::AttentionArgs& args) override {
    inner_->Attention(batch, pool, args);
  }
  void Gate(const backend::Tensor& gate_up, const backend::GatedArgs& args,
            const backend::Tensor& out) override {
    inner_->Gate(gate_up, args, out);
  }
  void GateBy(const backend::Tensor& gate, const backend::Tensor& by,
              backend::GatedActivation activation, const backend::Tensor& out) override {
    inner_->GateBy(gate, by, activation, out);
  }
  bool needs_gate_up() const override { return inner_->needs_gate_up(); }
  void MatMulGated(const backend::Tensor& x, const backend::PackedMatrix& gate_up,
                   const backend::GatedArgs& args, const backend::Tensor& scratch,
                   const backend::Tensor& out) override {
    inner_->MatMulGated(x, gate_up, args, scratch, out);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackRouter(
      const backend::HostMatrix& matrix) override {
    return inner_->PackRouter(matrix);
  }
  absl::StatusOr<std::unique_ptr<backend::ExpertGroup>> GroupExperts(
      std::vector<backend::ExpertMatrices> experts, const backend::ExpertBiases& biases) override {
    return inner_->GroupExperts(std::move(experts), biases);
  }
  bool experts_at_once() const override { return inner_->experts_at_once(); }
  void Experts(const backend::ExpertsArgs& args) override { inner_->Experts(args); }
  void ShortConv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                 const backend::ShortConvArgs& args) override {
    inner_->ShortConv(batch, pool, args);
  }
  void GatedDelta(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                  const backend::GatedDeltaArgs& args) override {
    inner_->GatedDelta(batch, pool, args);
  }
  void StateSpace(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                  const backend::StateSpaceArgs& args) override {
    inner_->StateSpace(batch, pool, args);
  }
  void GatedNorm(const backend::GatedNormArgs& args) override { inner_->GatedNorm(args); }
  void GateOutput(const backend::OutputGateArgs& args) override { inner_->GateOutput(args); }
  void ScaleLogits(const backend::Tensor& logits, float scale, float cap) override {
    inner_->ScaleLogits(logits, scale, cap);
  }
  void GatherLogitRows(const backend::DeviceBatch& batch, const backend::Tensor& x,
                       const backend::Tensor& out) override {
    inner_->GatherLogitRows(batch, x, out);
  }
  bool samples_on_device() const override { return inner_->samples_on_device(); }
  void EnqueueSample(const backend::Tensor& logits, int64_t token_count,
                     absl::Span<const backend::SampleRow> rows) override {
    inner_->EnqueueSample(logits, token_count, rows);
  }
  void CollectSample(absl::Span<backend::SampleOutcome> outcomes) override {
    inner_->CollectSample(outcomes);
  }
  void CopyBlocks(const backend::KvPool& pool, absl::Span<const int32_t> sources,
                  absl::Span<const int32_t> targets) override {
    inner_->CopyBlocks(pool, sources, targets);
  }

 protected:
  backend::Backend& inner() { return *inner_; }
  const backend::Backend& inner() const { return *inner_; }

 private:
  const std::unique_ptr<backend::Backend> inner_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_FORWARDING_BACKEND_H_
