#include "common/model/transformer.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/backend/cpu/cpu_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/model/model_runner.h"
#include "tests/testing/devices.h"

namespace baton::model {
namespace {

using backend::BackendOptions;
using MakeBackendFn = std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>()>;

std::string CheckpointDir(const std::string& name) {
  return std::string(BATON_CHECKPOINT_DIR) + "/" + name;
}

// What make_expected.py wrote.
nlohmann::json ReadExpected(const std::string& shape) {
  std::ifstream file("tests/common/model/expected/" + shape + ".json");
  EXPECT_TRUE(file.good()) << "run make_expected.py";
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

std::vector<int32_t> LongestPrompt(const std::string& shape) {
  return ReadExpected(shape)["cases"].back()["prompt"].get<std::vector<int32_t>>();
}

// Largest difference from the reference over its samples and its best tokens.
double WorstError(const nlohmann::json& expected, const Logits& logits) {
  double worst = 0;
  const auto compare = [&](size_t position, size_t token, double value) {
    const double error = std::fabs(logits.at(position).at(token) - value);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  };
  for (const auto& sample : expected["samples"]) compare(sample[0], sample[1], sample[2]);
  for (const auto& top : expected["top"]) compare(logits.size() - 1, top[0], top[1]);
  return worst;
}

// A model as Transformers computes a prompt of so many tokens with it: of longrope, prompts within
// the original context are rotated by other factors.
class RunnerByLength {
 public:
  RunnerByLength(const std::string& shape, const MakeBackendFn& make)
      : long_context_(CheckpointDir(shape), make()) {
    if (!long_context_.ok()) return;
    short_positions_ = long_context_.config().original_positions;
    if (short_positions_ == 0) return;
    short_context_.emplace(CheckpointDir(shape), make(), 0, short_positions_);
  }
  bool ok() const { return long_context_.ok(); }
  ModelRunner& For(size_t tokens) {
    return tokens <= static_cast<size_t>(short_positions_) ? *short_context_ : long_context_;
  }

 private:
  ModelRunner long_context_;
  std::optional<ModelRunner> short_context_;
  int short_positions_ = 0;
};

// Each shape on each device.
class TransformerTest
    : public ::testing::TestWithParam<std::tuple<const char*, baton::testing::Device>> {
 protected:
  static std::string shape() { return std::get<0>(GetParam()); }
  static const baton::testing::Device& device() { return std::get<1>(GetParam()); }
  // Prompts are computed whole and in chunks; those of up to so many tokens also one by one.
  void ExpectGoldens(size_t longest_one_by_one);
};

void TransformerTest::ExpectGoldens(size_t longest_one_by_one) {
  RunnerByLength models(shape(), device().make);
  ASSERT_TRUE(models.ok());
  const nlohmann::json expected = ReadExpected(shape());
  // In these, two experts of some tokens nearly tie, and a rounding turns the choice.
  const bool nearly_ties = shape() == "tiny-lfm2-moe" || shape() == "tiny-gemma4-moe";
  const double tolerance = device().logit_tolerance * (nearly_ties ? 2 : 1);
  double worst = 0;
  ASSERT_EQ(expected["cases"].size(), 4);
  for (const auto& one : expected["cases"]) {
    const auto prompt = one["prompt"].get<std::vector<int32_t>>();
    ModelRunner& model = models.For(prompt.size());
    const Logits whole = model.Run(prompt, prompt.size());
    const double error = WorstError(one, whole);
    EXPECT_LE(error, tolerance) << prompt.size() << " tokens";
    worst = std::max(worst, error);
    // One answer: chunks and single tokens give the same bits.
    EXPECT_TRUE(model.Run(prompt, 13) == whole) << prompt.size() << " tokens in chunks";
    if (prompt.size() > longest_one_by_one) continue;
    EXPECT_TRUE(model.Run(prompt, 1) == whole) << prompt.size() << " tokens one by one";
  }
  std::cout << shape() << " on " << device().name << ": largest difference " << worst << "\n";
}

TEST_P(TransformerTest, LogitsAreThoseOfTransformers) { ExpectGoldens(device().slow ? 64 : 1000); }

// The families on emulated devices, which would take minutes for all tests.
class EmulatedFamilyTest : public TransformerTest {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EmulatedFamilyTest);

TEST_P(EmulatedFamilyTest, LogitsAreThoseOfTransformers) { ExpectGoldens(17); }

TEST_P(TransformerTest, ShardsAndNewKeyNamesChangeNoBit) {
  ModelRunner single(CheckpointDir(shape()), device().make());
  ModelRunner sharded(CheckpointDir(shape() + "-sharded"), device().make());
  ASSERT_TRUE(single.ok() && sharded.ok());
  const std::vector<int32_t> prompt = LongestPrompt(shape());
  EXPECT_TRUE(single.Run(prompt, prompt.size()) == sharded.Run(prompt, prompt.size()));
  ASSERT_EQ(single.config().ropes.size(), sharded.config().ropes.size());
  for (size_t i = 0; i < single.config().ropes.size(); ++i) {
    EXPECT_EQ(single.config().ropes[i].inverse_frequencies,
              sharded.config().ropes[i].inverse_frequencies);
  }
  EXPECT_NE(single.config().fingerprint, sharded.config().fingerprint);
}

TEST_P(TransformerTest, RowsWithoutLogitsChangeNoBit) {
  ModelRunner model(CheckpointDir(shape()), device().make());
  ASSERT_TRUE(model.ok());
  const std::vector<int32_t> prompt = LongestPrompt(shape());
  const Logits all = model.Run(prompt, prompt.size());
  const std::vector<int32_t> blocks = model.TakeBlocks(prompt.size());
  const int count = static_cast<int>(prompt.size());
  const int half = count / 2;
  const backend::SequenceRows first{
      .first_row = 0, .row_count = half, .context = 0, .blocks = blocks};
  EXPECT_TRUE(model
                  .Forward({.tokens = absl::MakeSpan(prompt).subspan(0, half),
                            .sequences = {&first, 1},
                            .logit_rows = {}})
                  .empty());
  const backend::SequenceRows second{
      .first_row = 0, .row_count = count - half, .context = half, .blocks = blocks};
  const std::vector<int32_t> wanted = {3, 4, count - half - 1};
  const Logits some = model.Forward({.tokens = absl::MakeSpan(prompt).subspan(half),
                                     .sequences = {&second, 1},
                                     .logit_rows = wanted});
  ASSERT_EQ(some.size(), 3);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(some[i] == all[half + wanted[i]]) << "row " << wanted[i];
}

// A chunk, single tokens and a whole prompt in one step.
TEST_P(TransformerTest, NeighboursChangeNoBit) {
  ModelRunner model(CheckpointDir(shape()), device().make());
  ASSERT_TRUE(model.ok());
  const std::vector<int32_t> prompt = LongestPrompt(shape());
  const Logits all = model.Run(prompt, prompt.size());
  const std::vector<int> contexts = {0, 100, 37, 0, 64};
  const std::vector<int> counts = {50, 1, 40, 1, 1};
  std::vector<std::vector<int32_t>> blocks;
  for (int context : contexts) {
    blocks.push_back(model.TakeBlocks(prompt.size()));
    if (context == 0) continue;
    const backend::SequenceRows before{
        .first_row = 0, .row_count = context, .context = 0, .blocks = blocks.back()};
    model.Forward({.tokens = absl::MakeSpan(prompt).subspan(0, context),
                   .sequences = {&before, 1},
                   .logit_rows = {}});
  }
  std::vector<int32_t> tokens, logit_rows;
  std::vector<backend::SequenceRows> sequences;
  for (size_t i = 0; i < contexts.size(); ++i) {
    sequences.push_back({.first_row = static_cast<int>(tokens.size()),
                         .row_count = counts[i],
                         .context = contexts[i],
                         .blocks = blocks[i]});
    tokens.insert(tokens.end(), prompt.begin() + contexts[i],
                  prompt.begin() + contexts[i] + counts[i]);
    logit_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
  }
  const Logits last =
      model.Forward({.tokens = tokens, .sequences = sequences, .logit_rows = logit_rows});
  ASSERT_EQ(last.size(), contexts.size());
  for (size_t i = 0; i < contexts.size(); ++i) {
    EXPECT_TRUE(last[i] == all[contexts[i] + counts[i] - 1]) << "sequence " << i;
  }
}

class LayersSeen : public LayerObserver {
 public:
  void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) override {
    event->Wait();
    layers.push_back(layer);
  }
  void OnStateWritten(int layer, std::shared_ptr<const backend::Event> event) override {
    event->Wait();
    states.push_back(layer);
  }
  std::vector<int> layers, states;
};

TEST_P(TransformerTest, ObserverSeesEachLayerOnceInOrder) {
  ModelRunner model(CheckpointDir(shape()), device().make());
  ASSERT_TRUE(model.ok());
  const std::vector<int32_t> blocks = model.TakeBlocks(2);
  const std::vector<int32_t> tokens = {5, 6};
  const backend::SequenceRows rows{.first_row = 0, .row_count = 2, .context = 0, .blocks = blocks};
  for (const std::vector<int32_t>& logit_rows : {std::vector<int32_t>{}, std::vector<int32_t>{1}}) {
    LayersSeen seen;
    model.Forward({.tokens = tokens, .sequences = {&rows, 1}, .logit_rows = logit_rows}, &seen);
    const std::vector<LayerSpec>& specs = model.config().layers;
    std::vector<int> layers(KvLayers(specs).size());
    std::vector<int> states(
        static_cast<size_t>(std::count_if(specs.begin(), specs.end(), [](const LayerSpec& layer) {
          return layer.recurrence() != nullptr;
        })));
    std::iota(layers.begin(), layers.end(), 0);
    std::iota(states.begin(), states.end(), 0);
    EXPECT_EQ(seen.layers, layers);
    EXPECT_EQ(seen.states, states);
  }
}

class RecurrentTest : public TransformerTest {};

// A chunk leaves its state within, and sequences go on from there, as from a cached prefix.
TEST_P(RecurrentTest, SequencesGoOnFromSnapshots) {
  ModelRunner model(CheckpointDir(shape()), device().make());
  ASSERT_TRUE(model.ok());
  const std::vector<int32_t> prompt = LongestPrompt(shape());
  const int count = static_cast<int>(prompt.size());
  const Logits all = model.Run(prompt, prompt.size());
  const std::vector<int32_t> blocks = model.TakeBlocks(prompt.size());
  std::vector<std::vector<int32_t>> pages;
  std::vector<backend::StateStore> stores;
  for (int tokens = 1; tokens < count; tokens += tokens < 20 ? 1 : 23) {
    pages.push_back(model.StatePages(static_cast<int32_t>(pages.size())));
    stores.push_back({tokens, pages.back()});
  }
  pages.push_back(model.StatePages(static_cast<int32_t>(pages.size())));
  stores.push_back({count, pages.back()});
  ASSERT_LE(pages.size(), size_t{ModelRunner::kBlockCount});
  backend::SequenceRows first{.first_row = 0, .row_count = count, .context = 0, .blocks = blocks};
  first.state_stores = stores;
  model.Forward({.tokens = prompt, .sequences = {&first, 1}, .logit_rows = {}});
  for (const backend::StateStore& store : stores) {
    if (store.tokens == count) continue;
    // On a slow device, those behind few tokens go on for as many as cross the kernels' borders at
    // 16 and 32 rows; those behind more go to the end.
    const int rows =
        std::min(count - store.tokens, device().slow && store.tokens < 20 ? 45 : count);
    backend::SequenceRows rest{
        .first_row = 0, .row_count = rows, .context = store.tokens, .blocks = blocks};
    const backend::StateStore end = {store.tokens + rows, pages.back()};
    rest.state = store.pages;
    rest.state_stores = absl::MakeConstSpan(&end, 1);
    const std::vector<int32_t> last = {rows - 1};
    const Logits logits =
        model.Forward({.tokens = absl::MakeSpan(prompt).subspan(static_cast<size_t>(store.tokens),
                                                                static_cast<size_t>(rows)),
                       .sequences = {&rest, 1},
                       .logit_rows = last});
    EXPECT_TRUE(logits.at(0) == all.at(static_cast<size_t>(store.tokens + rows - 1)))
        << "behind " << store.tokens << " tokens";
  }
}

// Models whose gated products are beyond float16's range: none becomes infinite, on any device.
class GatedRangeTest : public TransformerTest {};

TEST_P(GatedRangeTest, LogitsAreThoseOfFloat32) {
  ModelRunner exact(CheckpointDir(shape()));
  ModelRunner model(CheckpointDir(shape()), device().make());
  ASSERT_TRUE(exact.ok() && model.ok());
  const std::vector<int32_t> prompt = Prompt(40, exact.config().vocab_size);
  const Logits whole = model.Run(prompt, prompt.size());
  // What rounding changes of a router's logits changes the weights of all experts.
  const double tolerance = device().logit_tolerance * (shape() == "tiny-qwen3-moe-gated" ? 4 : 1);
  EXPECT_LE(LargestDifference(whole, exact.Run(prompt, prompt.size())), tolerance);
  EXPECT_TRUE(model.Run(prompt, 13) == whole) << "in chunks";
}

// bfloat16 keeps 8 bits: an error of 2^-9 at each of some 20 roundings on the way to logits whose
// standard deviation is 2 and largest is about 6.
class LibraryProductsTest : public TransformerTest {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LibraryProductsTest);

TEST_P(LibraryProductsTest, LogitsAreThoseOfTransformers) {
  RunnerByLength models(shape(), device().make);
  ASSERT_TRUE(models.ok());
  const nlohmann::json expected = ReadExpected(shape());
  for (const auto& one : expected["cases"]) {
    const auto prompt = one["prompt"].get<std::vector<int32_t>>();
    for (const size_t chunk : {prompt.size(), size_t{13}, size_t{1}}) {
      EXPECT_LE(WorstError(one, models.For(prompt.size()).Run(prompt, chunk)),
                device().logit_tolerance)
          << prompt.size() << " tokens, " << chunk << " at a time";
    }
  }
}

class CpuBF16Test : public ::testing::TestWithParam<const char*> {};

TEST_P(CpuBF16Test, IsNear) {
  if (!backend::MakeCpuBackend({.compute = BackendOptions::Compute::kBF16}).ok()) {
    GTEST_SKIP() << "this CPU does not multiply bfloat16";
  }
  RunnerByLength models(GetParam(), [] {
    return backend::MakeCpuBackend(
        {.compute = BackendOptions::Compute::kBF16, .dequantize_weights = true, .thread_count = 2});
  });
  ASSERT_TRUE(models.ok());
  const nlohmann::json expected = ReadExpected(GetParam());
  double worst = 0;
  for (const auto& one : expected["cases"]) {
    const auto prompt = one["prompt"].get<std::vector<int32_t>>();
    ModelRunner& model = models.For(prompt.size());
    const Logits whole = model.Run(prompt, prompt.size());
    worst = std::max(worst, WorstError(one, whole));
    EXPECT_TRUE(model.Run(prompt, 13) == whole) << prompt.size() << " tokens in chunks";
  }
  EXPECT_GT(worst, 0);
  EXPECT_LE(worst, 0.25);
  std::cout << GetParam() << ": largest difference at bfloat16 " << worst << "\n";
}

const auto kShapes = ::testing::Values("tiny-llama", "tiny-qwen2", "tiny-qwen2-sliding",
                                       "tiny-qwen3", "tiny-mistral");
const auto kFamilies = ::testing::Values(
    "tiny-gemma2", "tiny-gemma3", "tiny-gemma3-270m", "tiny-gemma3-mm", "tiny-smollm3",
    "tiny-ministral3", "tiny-ministral3-mm", "tiny-phi3", "tiny-olmo2", "tiny-olmo3",
    "tiny-granite", "tiny-qwen2-yarn", "tiny-qwen3-yarn", "tiny-seedoss", "tiny-exaone4");

const auto kExperts =
    ::testing::Values("tiny-qwen3-moe", "tiny-mixtral", "tiny-olmoe", "tiny-gpt-oss");

const auto kLatent = ::testing::Values("tiny-deepseek-v2", "tiny-glm4-moe-lite");

const auto kRecurrent = ::testing::Values(
    "tiny-lfm2", "tiny-qwen3.5", "tiny-qwen3.5-moe", "tiny-qwen3-next", "tiny-lfm2-moe",
    "tiny-granite-hybrid", "tiny-granite-hybrid-dense", "tiny-nemotron-h", "tiny-nemotron-h-moe",
    "tiny-qwen3.5-mm", "tiny-qwen3.5-moe-mm");

// Likewise: layers that differ in their heads.
const auto kMixedLayers = ::testing::Values("tiny-gemma4", "tiny-gemma4-mm", "tiny-gemma4-moe");

std::vector<baton::testing::Device> DevicesOf(bool slow) {
  std::vector<baton::testing::Device> devices = baton::testing::Devices();
  std::erase_if(devices, [&](const auto& device) { return device.slow != slow; });
  return devices;
}

// Those whose products take activations in the type that they compute in.
std::vector<baton::testing::Device> ExactDevices() {
  std::vector<baton::testing::Device> devices = baton::testing::Devices();
  std::erase_if(devices, [](const auto& device) { return device.rounds_activations; });
  return devices;
}

std::string NameOf(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Shapes, TransformerTest,
                         ::testing::Combine(kShapes,
                                            ::testing::ValuesIn(baton::testing::Devices())),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Families, TransformerTest,
                         ::testing::Combine(kFamilies, ::testing::ValuesIn(DevicesOf(false))),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Recurrent, TransformerTest,
                         ::testing::Combine(kRecurrent, ::testing::ValuesIn(DevicesOf(false))),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Recurrent, RecurrentTest,
                         ::testing::Combine(kRecurrent,
                                            ::testing::ValuesIn(baton::testing::Devices())),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(MixedLayers, TransformerTest,
                         ::testing::Combine(kMixedLayers,
                                            ::testing::ValuesIn(baton::testing::Devices())),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Experts, TransformerTest,
                         ::testing::Combine(kExperts,
                                            ::testing::ValuesIn(baton::testing::Devices())),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Latent, TransformerTest,
                         ::testing::Combine(kLatent, ::testing::ValuesIn(DevicesOf(false))),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Families, EmulatedFamilyTest,
                         ::testing::Combine(kFamilies, ::testing::ValuesIn(DevicesOf(true))),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Recurrent, EmulatedFamilyTest,
                         ::testing::Combine(kRecurrent, ::testing::ValuesIn(DevicesOf(true))),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Latent, EmulatedFamilyTest,
                         ::testing::Combine(kLatent, ::testing::ValuesIn(DevicesOf(true))),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(
    Shapes, GatedRangeTest,
    ::testing::Combine(::testing::Values("tiny-llama-gated", "tiny-llama-gated-gptq",
                                         "tiny-gemma3-270m-gated", "tiny-olmo2-gated",
                                         "tiny-phi3-gated", "tiny-qwen3-moe-gated"),
                       ::testing::ValuesIn(ExactDevices())),
    [](const auto& info) {
      return NameOf(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
    });
INSTANTIATE_TEST_SUITE_P(Shapes, LibraryProductsTest,
                         ::testing::Combine(kShapes,
                                            ::testing::ValuesIn(baton::testing::LibraryDevices())),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Shapes, CpuBF16Test, kShapes,
                         [](const auto& info) { return NameOf(info.param); });
INSTANTIATE_TEST_SUITE_P(Families, CpuBF16Test, kFamilies,
                         [](const auto& info) { return NameOf(info.param); });

INSTANTIATE_TEST_SUITE_P(Experts, CpuBF16Test, kExperts,
                         [](const auto& info) { return NameOf(info.param); });
INSTANTIATE_TEST_SUITE_P(MixedLayers, CpuBF16Test, kMixedLayers,
                         [](const auto& info) { return NameOf(info.param); });
INSTANTIATE_TEST_SUITE_P(Recurrent, CpuBF16Test, kRecurrent,
                         [](const auto& info) { return NameOf(info.param); });

// The same values, rounded in the file.
TEST(WeightDTypeTest, HalfPrecisionFilesAreNear) {
  for (const auto& [name, tolerance] :
       {std::pair("tiny-qwen2-bf16", 0.2), std::pair("tiny-qwen2-f16", 0.03)}) {
    for (const auto compute : {BackendOptions::Compute::kF32, BackendOptions::Compute::kAuto}) {
      ModelRunner model(CheckpointDir(name), compute);
      ASSERT_TRUE(model.ok());
      const nlohmann::json expected = ReadExpected("tiny-qwen2")["cases"].back();
      const auto prompt = expected["prompt"].get<std::vector<int32_t>>();
      const double error = WorstError(expected, model.Run(prompt, prompt.size()));
      EXPECT_LE(error, compute == BackendOptions::Compute::kF32 ? tolerance : 0.25) << name;
      std::cout << name << ": largest difference " << error << "\n";
    }
  }
}

TEST(WeightDTypeTest, ProgressEndsAtOne) {
  ModelRunner model(CheckpointDir("tiny-llama"));
  ASSERT_TRUE(model.ok());
  ASSERT_GT(model.progress().size(), 10);
  for (size_t i = 1; i < model.progress().size(); ++i) {
    EXPECT_GE(model.progress()[i], model.progress()[i - 1]);
  }
  EXPECT_LT(model.progress().front(), 1);
  EXPECT_EQ(model.progress().back(), 1);
}

}  // namespace
}  // namespace baton::model
