// An engine on a device with a library of matrix products that the test watches.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/cuda_backend.h"
#include "common/engine/engine.h"
#include "tests/common/backend/cuda/fake_product_library.h"

namespace baton::engine {
namespace {

class EngineTuningTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> Load() {
    EngineOptions options;
    options.model_dir = absl::StrCat(BATON_CHECKPOINT_DIR, "/", GetParam());
    options.max_num_batched_tokens = 72;  // more than quantised weights are multiplied by directly
    options.max_num_seqs = 4;
    options.max_model_len = 128;
    options.num_blocks = 16;
    options.make_backend = [this](const backend::BackendOptions& given) {
      return backend::cuda::MakeBackendOn(
          backend::cuda::MakeEmulatedRuntime(80, size_t{96} << 20, 3),
          backend::cuda::MakeFakeProducts(device_, ""), given);
    };
    return Engine::Load(options).value();
  }
  int32_t Step(Engine& engine, int context, int rows) {
    std::vector<int32_t> tokens(static_cast<size_t>(rows));
    std::iota(tokens.begin(), tokens.end(), 100 + context);
    std::vector<kv::BlockId> blocks(8);
    std::iota(blocks.begin(), blocks.end(), 0);
    const model::SamplingParams greedy = {.temperature = 0};
    BatchEntry entry;
    entry.tokens = tokens;
    entry.context = context;
    entry.blocks = blocks;
    entry.sample = true;
    entry.sampling = &greedy;
    Batch batch;
    batch.entries.push_back(entry);
    return engine.Step(batch)[0].tokens.value()[0].token_id;
  }

  backend::cuda::FakeDevice device_;
};

// Whatever a step multiplies was tried out when the model was loaded: no request waits for that,
// and nothing is asked of the library where a stream may be under capture.
TEST_P(EngineTuningTest, EveryProductOfEveryStepIsSettledAtLoad) {
  device_.algorithms = 2;
  device_.seconds = [](int id, const backend::cuda::MatMulLaunch&) {
    return id == 1 ? 1e-6 : id == 0 ? 2e-6 : 3e-6;
  };
  const std::unique_ptr<Engine> engine = Load();
  EXPECT_GT(device_.measurements, 0);
  const int measurements = device_.measurements, suggestions = device_.suggestions;
  device_.calls.clear();
  int context = 0;
  for (const int rows : {72, 1, 3, 20, 1}) {
    Step(*engine, context, rows);
    context += rows;
  }
  EXPECT_EQ(device_.measurements, measurements);
  EXPECT_EQ(device_.suggestions, suggestions);
  EXPECT_FALSE(device_.calls.empty());
  for (const auto& call : device_.calls) EXPECT_EQ(call.id, 1) << "which was the fastest";
}

INSTANTIATE_TEST_SUITE_P(Models, EngineTuningTest,
                         ::testing::Values("tiny-qwen2", "tiny-llama-gptq4-order"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace baton::engine
