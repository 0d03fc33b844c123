// The CPU as a device with memory and a sampler of its own: what an engine does with such a device,
// without one. Its pointers point at nothing: who follows one on the host is found out.
#ifndef BATON_TESTS_TESTING_FAKE_DEVICE_H_
#define BATON_TESTS_TESTING_FAKE_DEVICE_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/cpu_backend.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/model/sampler.h"
#include "tests/testing/fake_device_links.h"
#include "tests/testing/forwarding_backend.h"

namespace baton::testing {

// What a test asks of a device, and what it sees of it. Must outlive the backend.
struct FakeDevice {
  size_t arena_bytes = size_t{1} << 30;
  size_t workspace_bytes = 1000;
  bool samples = true;
  // Called with every result that has as many columns as the vocabulary.
  std::function<void(const backend::Tensor& logits)> spoil_logits;

  size_t used_bytes = 0;
  std::vector<backend::StepLimits> prepared;
  int packed = 0;
  int uploads = 0;
  std::vector<size_t> sampled_rows;  // one a call
  std::atomic<int> awaited_events{0};
  std::atomic<int> kv_reads{0};
  std::atomic<int> kv_writes{0};

  // Of its links with other fake devices, which are told apart by `name`. Empty: it has none.
  std::string name;
  int most_linked_chunks = 4;  // of one operation
  DeviceLinkFaults links;
};

class FakeDeviceBackend final : public ForwardingBackend {
 public:
  FakeDeviceBackend(FakeDevice& device, std::unique_ptr<backend::Backend> cpu)
      : ForwardingBackend(std::move(cpu)), device_(device) {}

  std::string Description() const override { return "fake device"; }
  absl::Status Prepare(const backend::StepLimits& limits) override {
    BATON_CHECK_EQ(device_.uploads, 0);
    device_.prepared.push_back(limits);
    return Take(device_.workspace_bytes);
  }
  size_t WorkspaceBytes(const backend::StepLimits& limits) const override {
    return device_.workspace_bytes;
  }
  std::optional<size_t> FreeBytes() const override {
    return device_.arena_bytes - device_.used_bytes;
  }
  absl::StatusOr<std::unique_ptr<backend::Buffer>> Allocate(size_t size_bytes) override {
    if (absl::Status status = Take(size_bytes); !status.ok()) return status;
    auto real = ForwardingBackend::Allocate(size_bytes);
    if (!real.ok()) return real;
    return std::make_unique<DeviceBuffer>(*std::move(real));
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Pack(
      absl::Span<const backend::HostMatrix> stacked) override {
    ++device_.packed;
    auto packed = ForwardingBackend::Pack(stacked);
    if (!packed.ok()) return packed;
    const int64_t values = (*packed)->out_features() * (*packed)->in_features();
    if (absl::Status status = Take(static_cast<size_t>(values) * SizeOf(activation_dtype()));
        !status.ok()) {
      return status;
    }
    return packed;
  }
  absl::StatusOr<std::unique_ptr<backend::RopeTable>> MakeRopeTable(const backend::RopeSpec& spec,
                                                                    int max_positions) override {
    const size_t query_bytes = spec.query_beta == 0 ? 0 : static_cast<size_t>(max_positions) * 4;
    if (absl::Status status = Take(query_bytes); query_bytes > 0 && !status.ok()) return status;
    for (int i = 0; i < 2; ++i) {
      if (absl::Status status =
              Take(spec.inverse_frequencies.size() * static_cast<size_t>(max_positions) * 4);
          !status.ok()) {
        return status;
      }
    }
    return ForwardingBackend::MakeRopeTable(spec, max_positions);
  }
  std::unique_ptr<backend::DeviceBatch> Upload(const backend::RaggedBatch& batch) override {
    ++device_.uploads;
    if (batch.drawn.empty()) return ForwardingBackend::Upload(batch);
    input_tokens_.assign(batch.tokens.begin(), batch.tokens.end());
    for (size_t row = 0; row < batch.drawn.size(); ++row) {
      if (batch.drawn[row] < 0) continue;
      const backend::SampleOutcome& drawn = last_drawn_.at(static_cast<size_t>(batch.drawn[row]));
      input_tokens_[row] = std::max(0, drawn.token_id);
    }
    backend::RaggedBatch known = batch;
    known.tokens = input_tokens_;
    known.drawn = {};
    return ForwardingBackend::Upload(known);
  }
  std::unique_ptr<backend::Event> RecordEvent() override {
    return std::make_unique<CountedEvent>(device_);
  }
  std::unique_ptr<backend::KvCopier> MakeKvCopier(const backend::KvPool& pool) override {
    return std::make_unique<PoolCopier>(device_, Real(pool));
  }
  absl::StatusOr<std::shared_ptr<backend::DeviceLinks>> MakeDeviceLinks(
      const backend::KvPool& pool) override {
    if (device_.name.empty()) return ForwardingBackend::MakeDeviceLinks(pool);
    return std::make_shared<FakeDeviceLinks>(device_.name, Real(pool), device_.links,
                                             device_.most_linked_chunks);
  }
  void MatMul(const backend::Tensor& x, const backend::PackedMatrix& weight,
              const backend::Buffer* bias, const backend::Tensor& out) override {
    ForwardingBackend::MatMul(Real(x), weight, Real(bias), Real(out));
    if (!device_.prepared.empty() && out.cols == device_.prepared[0].vocab_size &&
        device_.spoil_logits) {
      device_.spoil_logits(Real(out));
    }
  }
  void CopyToDevice(void* device, const void* host, size_t size_bytes) override {
    ForwardingBackend::CopyToDevice(Real(device), host, size_bytes);
  }
  void CopyToHost(void* host, const void* device, size_t size_bytes) override {
    ForwardingBackend::CopyToHost(host, Real(const_cast<void*>(device)), size_bytes);
  }
  void Embed(const backend::DeviceBatch& batch, const backend::Tensor& table, float scale,
             const backend::Tensor& out) override {
    ForwardingBackend::Embed(batch, Real(table), scale, Real(out));
  }
  void Norm(const backend::NormArgs& args) override {
    backend::NormArgs real = args;
    real.residual = Real(args.residual);
    if (args.delta.data != nullptr) real.delta = Real(args.delta);
    real.delta_weight = Real(args.delta_weight);
    real.weight = Real(args.weight);
    real.out = Real(args.out);
    ForwardingBackend::Norm(real);
  }
  void RopeWriteKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                   const backend::RopeWriteArgs& args) override {
    backend::RopeWriteArgs real = args;
    real.qkv = Real(args.qkv);
    real.q_norm = Real(args.q_norm);
    real.k_norm = Real(args.k_norm);
    real.q_out = Real(args.q_out);
    ForwardingBackend::RopeWriteKv(batch, Real(pool), real);
  }
  void Attention(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                 const backend::AttentionArgs& args) override {
    backend::AttentionArgs real = args;
    real.sinks = Real(args.sinks);
    real.q = Real(args.q);
    real.out = Real(args.out);
    ForwardingBackend::Attention(batch, Real(pool), real);
  }
  void ShortConv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                 const backend::ShortConvArgs& args) override {
    backend::ShortConvArgs real = args;
    for (backend::Tensor* tensor : {&real.x, &real.before, &real.after, &real.out}) {
      *tensor = Real(*tensor);
    }
    real.weight = Real(args.weight);
    real.bias = Real(args.bias);
    ForwardingBackend::ShortConv(batch, Real(pool), real);
  }
  void GatedDelta(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                  const backend::GatedDeltaArgs& args) override {
    backend::GatedDeltaArgs real = args;
    for (backend::Tensor* tensor : {&real.qkv, &real.gates, &real.out}) *tensor = Real(*tensor);
    real.decay = Real(args.decay);
    real.step_bias = Real(args.step_bias);
    ForwardingBackend::GatedDelta(batch, Real(pool), real);
  }
  void StateSpace(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                  const backend::StateSpaceArgs& args) override {
    backend::StateSpaceArgs real = args;
    for (backend::Tensor* tensor : {&real.xbc, &real.dt, &real.out}) *tensor = Real(*tensor);
    real.decay = Real(args.decay);
    real.step_bias = Real(args.step_bias);
    real.skip = Real(args.skip);
    ForwardingBackend::StateSpace(batch, Real(pool), real);
  }
  void GatedNorm(const backend::GatedNormArgs& args) override {
    backend::GatedNormArgs real = args;
    for (backend::Tensor* tensor : {&real.x, &real.gate, &real.out}) *tensor = Real(*tensor);
    real.weight = Real(args.weight);
    ForwardingBackend::GatedNorm(real);
  }
  void GateOutput(const backend::OutputGateArgs& args) override {
    backend::OutputGateArgs real = args;
    real.x = Real(args.x);
    real.gate = Real(args.gate);
    ForwardingBackend::GateOutput(real);
  }
  void Gate(const backend::Tensor& gate_up, const backend::GatedArgs& args,
            const backend::Tensor& out) override {
    ForwardingBackend::Gate(Real(gate_up), args, Real(out));
  }
  void GateBy(const backend::Tensor& gate, const backend::Tensor& by,
              backend::GatedActivation activation, const backend::Tensor& out) override {
    ForwardingBackend::GateBy(Real(gate), Real(by), activation, Real(out));
  }
  void MatMulGated(const backend::Tensor& x, const backend::PackedMatrix& gate_up,
                   const backend::GatedArgs& args, const backend::Tensor& scratch,
                   const backend::Tensor& out) override {
    ForwardingBackend::MatMulGated(Real(x), gate_up, args, Real(scratch), Real(out));
  }
  void ScaleLogits(const backend::Tensor& logits, float scale, float cap) override {
    ForwardingBackend::ScaleLogits(Real(logits), scale, cap);
  }
  void GatherLogitRows(const backend::DeviceBatch& batch, const backend::Tensor& x,
                       const backend::Tensor& out) override {
    ForwardingBackend::GatherLogitRows(batch, Real(x), Real(out));
  }
  void CopyBlocks(const backend::KvPool& pool, absl::Span<const int32_t> sources,
                  absl::Span<const int32_t> targets) override {
    ForwardingBackend::CopyBlocks(Real(pool), sources, targets);
  }
  bool samples_on_device() const override { return device_.samples; }
  void EnqueueSample(const backend::Tensor& logits, int64_t token_count,
                     absl::Span<const backend::SampleRow> rows) override;
  void CollectSample(absl::Span<backend::SampleOutcome> outcomes) override {
    BATON_CHECK(!drawn_.empty()) << "nothing was drawn";
    BATON_CHECK_EQ(drawn_.front().size(), outcomes.size());
    std::copy(drawn_.front().begin(), drawn_.front().end(), outcomes.begin());
    drawn_.pop_front();
  }

 private:
  // No address of x86-64 or AArch64 has this bit alone.
  static constexpr uintptr_t kDeviceBit = uintptr_t{1} << 60;
  static void* Real(void* device) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(device);
    BATON_CHECK(address == 0 || (address & kDeviceBit) != 0)
        << "host memory where a device's is due";
    return reinterpret_cast<void*>(address & ~kDeviceBit);
  }
  static backend::Tensor Real(backend::Tensor tensor) {
    tensor.data = Real(tensor.data);
    return tensor;
  }
  static backend::KvPool Real(backend::KvPool pool) {
    pool.base = static_cast<std::byte*>(Real(pool.base));
    return pool;
  }
  static const backend::Buffer* Real(const backend::Buffer* buffer) {
    return buffer == nullptr ? nullptr : &static_cast<const DeviceBuffer*>(buffer)->real();
  }
  class DeviceBuffer final : public backend::Buffer {
   public:
    explicit DeviceBuffer(std::unique_ptr<backend::Buffer> real)
        : Buffer(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(real->data()) | kDeviceBit),
                 real->size_bytes()),
          real_(std::move(real)) {}
    const backend::Buffer& real() const { return *real_; }

   private:
    const std::unique_ptr<backend::Buffer> real_;
  };
  class CountedEvent final : public backend::Event {
   public:
    explicit CountedEvent(FakeDevice& device) : device_(device) {}
    bool Done() const override { return true; }
    void Wait() const override { ++device_.awaited_events; }

   private:
    FakeDevice& device_;
  };
  class PoolCopier final : public backend::KvCopier {
   public:
    PoolCopier(FakeDevice& device, const backend::KvPool& pool) : device_(device), pool_(pool) {}
    void Read(backend::SlotRange slots, absl::Span<const int32_t> pages,
              const backend::Event* written, std::byte* host) override {
      ++device_.kv_reads;
      if (written != nullptr) written->Wait();
      ForEachChunk(slots, pages, [&](std::byte* chunk) {
        std::memcpy(host, chunk, static_cast<size_t>(pool_.layer_stride_bytes));
        host += pool_.layer_stride_bytes;
      });
    }
    void Write(backend::SlotRange slots, absl::Span<const int32_t> pages,
               const std::byte* host) override {
      ++device_.kv_writes;
      ForEachChunk(slots, pages, [&](std::byte* chunk) {
        std::memcpy(chunk, host, static_cast<size_t>(pool_.layer_stride_bytes));
        host += pool_.layer_stride_bytes;
      });
    }

   private:
    void ForEachChunk(backend::SlotRange slots, absl::Span<const int32_t> pages,
                      absl::FunctionRef<void(std::byte* chunk)> visit) const {
      for (const int32_t page : pages) {
        for (int slot = slots.first; slot < slots.first + slots.count; ++slot) {
          BATON_CHECK(page >= 0 && page < pool_.block_count) << "page " << page;
          visit(pool_.Chunk(page, slot));
        }
      }
    }
    FakeDevice& device_;
    const backend::KvPool pool_;
  };

  absl::Status Take(size_t size_bytes) {
    const size_t rounded = (size_bytes + 255) / 256 * 256;
    if (rounded > device_.arena_bytes - device_.used_bytes) {
      return MakeError(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
                       absl::StrCat(size_bytes, " bytes of device memory"));
    }
    device_.used_bytes += rounded;
    return absl::OkStatus();
  }

  FakeDevice& device_;
  std::vector<int32_t> input_tokens_;                      // of the last batch with `drawn`
  std::vector<backend::SampleOutcome> last_drawn_;         // of the last EnqueueSample
  std::deque<std::vector<backend::SampleOutcome>> drawn_;  // not collected
};

inline void FakeDeviceBackend::EnqueueSample(const backend::Tensor& logits, int64_t token_count,
                                             absl::Span<const backend::SampleRow> rows) {
  BATON_CHECK_LT(drawn_.size(), static_cast<size_t>(kMaxDraws)) << "draws that are not collected";
  std::vector<backend::SampleOutcome> outcomes(rows.size());
  BATON_CHECK_GE(rows.size(), 1u);
  BATON_CHECK_LE(rows.size(), static_cast<size_t>(device_.prepared.at(0).max_logit_rows));
  BATON_CHECK_LE(token_count, logits.cols);
  device_.sampled_rows.push_back(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const backend::SampleRow& row = rows[i];
    BATON_CHECK(row.logit_row >= 0 && row.logit_row < logits.rows) << row.logit_row;
    const absl::Span<const float> values(
        static_cast<const float*>(Real(logits).data) + row.logit_row * logits.row_stride,
        static_cast<size_t>(token_count));
    model::SamplingParams params;
    params.temperature = row.temperature;
    params.top_p = row.top_p;
    params.top_k = row.top_k;
    params.min_p = row.min_p;
    params.seed = row.seed;
    params.choice = row.choice;
    params.repetition_penalty = row.repetition_penalty;
    params.frequency_penalty = row.frequency_penalty;
    params.presence_penalty = row.presence_penalty;
    params.logit_bias.assign(row.logit_bias.begin(), row.logit_bias.end());
    std::vector<int32_t> tokens(row.tokens.begin(), row.tokens.end());
    if (row.drawn_row >= 0) tokens.push_back(input_tokens_.at(static_cast<size_t>(row.drawn_row)));
    const absl::StatusOr<model::SampledToken> token =
        model::Sample(values, params, {tokens, row.prompt_tokens, row.suppressed}, row.position);
    using Kind = backend::SampleOutcome::Kind;
    if (token.ok()) {
      outcomes[i] = {Kind::kToken, token->token_id, 0};
    } else if (ErrorReason(token.status()) == "NO_TOKEN_LEFT") {
      outcomes[i] = {Kind::kNoTokenLeft, 0, 0};
    } else {
      BATON_CHECK(ErrorReason(token.status()) == "NON_FINITE_LOGITS") << token.status();
      outcomes[i] = {Kind::kNonFinite, -1, 0};
      for (size_t id = values.size(); id-- > 0;) {
        if (values[id] <= std::numeric_limits<float>::max()) continue;
        outcomes[i].token_id = static_cast<int32_t>(id);
        outcomes[i].bad_logit = values[id];
      }
    }
  }
  last_drawn_ = outcomes;
  drawn_.push_back(std::move(outcomes));
}

// For EngineOptions.make_backend.
inline auto MakerOf(FakeDevice& device) {
  return [&device](const backend::BackendOptions& options)
             -> absl::StatusOr<std::unique_ptr<backend::Backend>> {
    auto cpu = backend::MakeCpuBackend(options);
    if (!cpu.ok()) return cpu.status();
    return std::make_unique<FakeDeviceBackend>(device, *std::move(cpu));
  };
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_FAKE_DEVICE_H_
