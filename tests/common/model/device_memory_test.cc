#include "common/model/device_memory.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "common/backend/cpu/cpu_backend.h"
#include "common/backend/quantized.h"
#include "common/model/transformer.h"
#include "gtest/gtest.h"
#include "tests/testing/dense_config.h"
#include "tests/testing/forwarding_backend.h"

namespace baton::model {
namespace {

// Counts what it is asked for, as a GPU is: it has a table for the embedding, tied or not.
class CountingBackend final : public baton::testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool embeds_packed(backend::DType) const override { return false; }
  absl::StatusOr<std::unique_ptr<backend::Buffer>> Allocate(size_t size_bytes) override {
    size.Add(static_cast<int64_t>(size_bytes));
    return ForwardingBackend::Allocate(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Pack(
      absl::Span<const backend::HostMatrix> stacked) override {
    auto packed = ForwardingBackend::Pack(stacked);
    if (packed.ok()) {
      size.Add((*packed)->out_features() * (*packed)->in_features() *
               static_cast<int64_t>(SizeOf(activation_dtype())));
    }
    return packed;
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackQuantized(
      absl::Span<const backend::QuantizedHostMatrix> stacked) override {
    auto packed = ForwardingBackend::PackQuantized(stacked);
    if (packed.ok()) {
      size.Add(backend::QuantizedExtentOf(
                   (*packed)->out_features(), (*packed)->in_features(), stacked[0].bits,
                   backend::PackedGroup(stacked[0].fp4, stacked[0].group_size),
                   stacked[0].symmetric)
                   .size_bytes());
    }
    return packed;
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackRouter(
      const backend::HostMatrix& matrix) override {
    size.Add(matrix.rows * matrix.cols * int64_t{sizeof(float)});
    return ForwardingBackend::PackRouter(matrix);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackHeads(
      absl::Span<const backend::HostMatrix> heads) override {
    size.Add(static_cast<int64_t>(heads.size()) * heads[0].rows * heads[0].cols *
             static_cast<int64_t>(SizeOf(activation_dtype())));
    return ForwardingBackend::PackHeads(heads);
  }
  absl::StatusOr<std::unique_ptr<backend::ExpertGroup>> GroupExperts(
      std::vector<backend::ExpertMatrices> experts, const backend::ExpertBiases& biases) override {
    const auto count = static_cast<int64_t>(experts.size());
    for (int i = 0; i < 2; ++i) size.Add(count * backend::kExpertTableEntryBytes);
    // A layer's experts are all in the one memory or in the other.
    if (on_host.size.allocations != grouped_on_host_) {
      EXPECT_EQ(on_host.size.allocations - grouped_on_host_, 2 * count);
      grouped_on_host_ = on_host.size.allocations;
      size.Add(count * backend::kExpertSourceBytes);
    }
    return ForwardingBackend::GroupExperts(std::move(experts), biases);
  }
  absl::StatusOr<std::unique_ptr<backend::RopeTable>> MakeRopeTable(const backend::RopeSpec& spec,
                                                                    int max_positions) override {
    for (int i = 0; i < 2; ++i) {
      size.Add(static_cast<int64_t>(spec.inverse_frequencies.size()) * max_positions * 4);
    }
    if (spec.query_beta != 0) size.Add(int64_t{max_positions} * 4);
    return ForwardingBackend::MakeRopeTable(spec, max_positions);
  }

  // Counts what is packed for the host's memory apart.
  class HostPacker final : public backend::MatrixPacker {
   public:
    explicit HostPacker(CountingBackend& backend) : backend_(backend) {}
    absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Pack(
        absl::Span<const backend::HostMatrix> stacked) override {
      return Apart([&] { return backend_.Pack(stacked); });
    }
    absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackQuantized(
        absl::Span<const backend::QuantizedHostMatrix> stacked) override {
      return Apart([&] { return backend_.PackQuantized(stacked); });
    }
    MemorySize size;

   private:
    using Packed = absl::StatusOr<std::unique_ptr<backend::PackedMatrix>>;
    Packed Apart(absl::FunctionRef<Packed()> pack) {
      std::swap(size, backend_.size);
      Packed packed = pack();
      std::swap(size, backend_.size);
      return packed;
    }
    CountingBackend& backend_;
  };
  backend::MatrixPacker* host_packer() override { return &on_host; }

  MemorySize size;
  HostPacker on_host{*this};

 private:
  int64_t grouped_on_host_ = 0;  // allocations of on_host that have a group
};

// What is foretold from the config is what loading takes, to the byte, for every architecture.
TEST(DeviceMemoryTest, IsWhatLoadingTakes) {
  using Compute = backend::BackendOptions::Compute;
  for (const char* shape : {"tiny-llama",           "tiny-qwen2",
                            "tiny-qwen3",           "tiny-mistral",
                            "tiny-gemma3",          "tiny-phi3",
                            "tiny-olmo2",           "tiny-ministral3",
                            "tiny-seedoss",         "tiny-exaone4",
                            "tiny-qwen2-bf16",      "tiny-qwen2-gptq4",
                            "tiny-llama-gptq8",     "tiny-qwen3-gptq4-channel",
                            "tiny-llama-awq",       "tiny-qwen3-moe",
                            "tiny-mixtral",         "tiny-qwen3-moe-gptq4",
                            "tiny-gpt-oss",         "tiny-gpt-oss-mxfp4",
                            "tiny-deepseek-v2",     "tiny-glm4-moe-lite",
                            "tiny-deepseek-v2-awq", "tiny-lfm2",
                            "tiny-qwen3.5",         "tiny-qwen3.5-moe",
                            "tiny-lfm2-moe",        "tiny-qwen3-next",
                            "tiny-granite-hybrid",  "tiny-nemotron-h",
                            "tiny-nemotron-h-moe",  "tiny-gemma4",
                            "tiny-gemma4-mm",       "tiny-gemma4-moe"}) {
    for (const auto& [compute, load_bits, experts_on_host] :
         {std::tuple(Compute::kF32, 0, 0), {Compute::kBF16, 0, 1}, {Compute::kF32, 4, 2}}) {
      SCOPED_TRACE(std::string(shape) + (compute == Compute::kF32 ? " f32, " : " bf16, ") +
                   std::to_string(load_bits) + ", on the host " + std::to_string(experts_on_host));
      auto cpu = backend::MakeCpuBackend({.compute = compute, .thread_count = 1});
      if (!cpu.ok()) continue;  // this CPU doesn't multiply bfloat16
      CountingBackend backend(*std::move(cpu));
      const std::string dir = std::string(BATON_CHECKPOINT_DIR "/") + shape;
      auto config = LoadModelConfig(dir);
      ASSERT_TRUE(config.ok()) << config.status();
      config->load_bits = load_bits;
      const auto transformer = Transformer::Load(dir, *config,
                                                 {.max_batch_tokens = 48,
                                                  .max_logit_rows = 7,
                                                  .max_positions = 100,
                                                  .experts_on_host = experts_on_host},
                                                 backend);
      ASSERT_TRUE(transformer.ok()) << transformer.status();
      const backend::DType activation = backend.activation_dtype();
      const WeightSizes sizes = WeightMemory(
          *config, activation,
          absl::string_view(shape).find("bf16") == absl::string_view::npos ? backend::DType::kF32
                                                                           : backend::DType::kBF16,
          {}, experts_on_host);
      const MemorySize weights = sizes.total();
      EXPECT_EQ(backend.on_host.size.bytes, sizes.host_experts.bytes);
      EXPECT_EQ(backend.on_host.size.allocations, sizes.host_experts.allocations);
      EXPECT_EQ(sizes.host_experts.bytes > 0, experts_on_host > 0 && ExpertLayers(*config) > 0);
      const MemorySize rope = RopeMemory(*config, 100);
      const MemorySize workspaces = WorkspaceMemory(WorkspacesOf(*config, 48, 7, activation, {}));
      EXPECT_EQ(backend.size.bytes, weights.bytes + rope.bytes + workspaces.bytes);
      EXPECT_EQ(backend.size.allocations,
                weights.allocations + rope.allocations + workspaces.allocations);
      EXPECT_GT(workspaces.bytes, 0);
    }
  }
}

// Qwen2.5-7B as published in 4 bits: what a T4's 16 GB are to hold.
TEST(DeviceMemoryTest, SevenBillionOfFourBits) {
  ModelConfig config = baton::testing::DenseConfig({.architecture = "Qwen2ForCausalLM",
                                                    .layers = 28,
                                                    .query_heads = 28,
                                                    .kv_heads = 4,
                                                    .head_dim = 128,
                                                    .ffn_dim = 18944,
                                                    .hidden_dim = 3584,
                                                    .vocab_size = 152064});
  const auto bytes = [&] {
    return WeightMemory(config, backend::DType::kF16, backend::DType::kF16).total().bytes;
  };
  const int64_t in_float16 = bytes();
  EXPECT_NEAR(static_cast<double>(in_float16), 15.23e9, 0.01e9);
  config.quantization = WeightQuantization{.bits = 4, .group_size = 128};
  baton::testing::SetQuantized(true, &config);
  // 6.53e9 values of the layers take 4 bits and a quarter; embedding and head stay.
  EXPECT_NEAR(static_cast<double>(bytes()), 2.18e9 + 6.53e9 * 4.25 / 8, 0.01e9);
  config.quantization->bits = 8;
  EXPECT_NEAR(static_cast<double>(bytes()), 2.18e9 + 6.53e9 * 8.25 / 8, 0.01e9);
  // Rounded at load: groups of 32 without zero points, and the head in 8 bits.
  config.quantization.reset();
  baton::testing::SetQuantized(false, &config);
  config.load_bits = 4;
  EXPECT_NEAR(static_cast<double>(bytes()), 1.09e9 + 0.545e9 * 8.5 / 8 + 6.53e9 * 4.5 / 8, 0.01e9);
}

TEST(DeviceMemoryTest, EveryAllocationIsRoundedUp) {
  MemorySize size;
  size.Add(1);
  size.Add(256);
  size.Add(257);
  EXPECT_EQ(size.bytes, 514);
  EXPECT_EQ(size.device_bytes, 256 + 256 + 512);
  EXPECT_EQ(size.allocations, 3);
  MemorySize twice = size;
  twice.Add(size);
  EXPECT_EQ(twice.device_bytes, 2 * size.device_bytes);
  EXPECT_EQ(twice.allocations, 6);
}

TEST(DeviceMemoryTest, QuantizedMatricesAreTheirBitsScalesAndZeroPoints) {
  using backend::DType;
  EXPECT_EQ(MatrixBytes(512, 1024, {}, DType::kF16), 512 * 1024 * 2);
  // Eight groups a row: 4-bit values, and a word with scale and zero point each.
  EXPECT_EQ(MatrixBytes(512, 1024, {.bits = 4}, DType::kF16), 512 * (1024 / 2 + 8 * 4));
  EXPECT_EQ(MatrixBytes(512, 1024, {.bits = 8, .group_size = 1024}, DType::kF16), 512 * (1024 + 4));
  // Whole tiles.
  EXPECT_EQ(MatrixBytes(1, 1024, {.bits = 4}, DType::kF16),
            MatrixBytes(backend::kQuantizedTileRows, 1024, {.bits = 4}, DType::kF16));
}

// No tensor of a step with fewer rows than logit rows has more of them.
TEST(DeviceMemoryTest, LogitRowsAreRows) {
  const auto config = LoadModelConfig(BATON_CHECKPOINT_DIR "/tiny-llama");
  ASSERT_TRUE(config.ok()) << config.status();
  const Workspaces few = WorkspacesOf(*config, 3, 10, backend::DType::kF16, {});
  EXPECT_EQ(few.logits.rows, 3);
  EXPECT_EQ(few.logits.cols, LogitStride(config->vocab_size));
  EXPECT_EQ(few.normed.size_bytes(), 3 * config->hidden_dim * 2);
  EXPECT_EQ(few.residual.size_bytes(), 3 * config->hidden_dim * 4);
}

TEST(DeviceMemoryTest, GateAndUpTakeNothingWhereTheBackendDoesWithout) {
  const auto config = LoadModelConfig(BATON_CHECKPOINT_DIR "/tiny-llama");
  ASSERT_TRUE(config.ok()) << config.status();
  const Workspaces with = WorkspacesOf(*config, 3, 1, backend::DType::kF16, {});
  const Workspaces without = WorkspacesOf(*config, 3, 1, backend::DType::kF16, {.gate_up = false});
  EXPECT_EQ(with.gate_up.size_bytes(), 3 * 2 * config->layers[0].mlp().ffn_dim * 4);
  EXPECT_EQ(WorkspaceMemory(with).bytes - WorkspaceMemory(without).bytes,
            with.gate_up.size_bytes());
  EXPECT_EQ(WorkspaceMemory(with).allocations, WorkspaceMemory(without).allocations + 1);
}

}  // namespace
}  // namespace baton::model
