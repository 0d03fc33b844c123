#include "common/engine/fitting_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/model_dir.h"

namespace baton::engine {
namespace {

using ::baton::testing::ModelDir;
using ::testing::Contains;
using ::testing::IsEmpty;

constexpr char kQwenOfHalfABillion[] =
    R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
  "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
  "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "hidden_act": "silu", "use_sliding_window": false,
  "max_window_layers": 24, "eos_token_id": 151643})";

constexpr int64_t kBytesOfMiB = 1 << 20;

// A question with the flags of a setting, as a command line would have them.
ServingQuestion With(ServingQuestion question, const std::string& flags) {
  const std::vector<std::string> words = absl::StrSplit(flags, ' ');
  EXPECT_EQ(words.size() % 2, 0u) << flags;
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    const std::string& flag = words[i];
    const std::string& value = words[i + 1];
    int number = 0;
    EXPECT_TRUE(absl::SimpleAtoi(value, &number) || !absl::ascii_isdigit(value[0]) ||
                flag == "--gpu-memory-utilization")
        << flags;
    if (flag == "--weights") {
      question.weights =
          model::WeightFormat{.bits = value == "int8" ? 8 : 4, .group_size = 32, .symmetric = true};
    } else if (flag == "--kv-cache-dtype") {
      question.engine.kv_dtype = kv::ParseKvDtype(value);
    } else if (flag == "--experts-on-host") {
      question.engine.experts_on_host = std::nullopt;
    } else if (flag == "--num-blocks") {
      question.engine.num_blocks = number;
    } else if (flag == "--kv-cache-memory") {
      question.engine.kv_cache_bytes = number;
    } else if (flag == "--max-num-batched-tokens") {
      question.engine.max_num_batched_tokens = number;
    } else if (flag == "--max-num-seqs") {
      question.engine.max_num_seqs = number;
    } else if (flag == "--max-model-len") {
      question.engine.max_model_len = number;
    } else if (flag == "--context") {
      question.context = number;
    } else if (flag == "--gpu-memory-utilization") {
      EXPECT_TRUE(absl::SimpleAtod(value, &question.engine.backend.gpu_memory_utilization));
    } else {
      ADD_FAILURE() << flag;
    }
  }
  return question;
}

class FittingSettingsTest : public ::testing::Test {
 protected:
  FittingSettingsTest() {
    dir_.Write("config.json", kQwenOfHalfABillion);
    question_.engine.model_dir = dir_.path();
    question_.gpu = *FindGpu("t4");
  }

  // The flags of all settings, each planned once more as its flags say.
  std::set<std::string> Fitting() {
    const auto plan = PlanServing(question_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::set<std::string> flags;
    for (const FittingSetting& setting : SettingsThatFit(question_, *plan)) {
      const auto with = PlanServing(With(question_, setting.flags));
      EXPECT_TRUE(with.ok()) << setting.flags << with.status();
      EXPECT_TRUE(with->refusal.ok()) << setting.flags << with->refusal;
      EXPECT_EQ(with->sequences, setting.sequences) << setting.flags;
      EXPECT_EQ(with->context, setting.context) << setting.flags;
      EXPECT_GT(setting.sequences, 0) << setting.flags;
      EXPECT_TRUE(flags.insert(setting.flags).second) << setting.flags;
    }
    return flags;
  }

  const ModelDir dir_;
  ServingQuestion question_;
};

TEST_F(FittingSettingsTest, NoneWhereTheModelFits) { EXPECT_THAT(Fitting(), IsEmpty()); }

TEST_F(FittingSettingsTest, SmallerWeightsOrSteps) {
  // In every amount of memory, what is said to fit does, and weights of fewer bits fit first.
  bool any_int4_alone = false;
  for (int64_t mib = 900; mib <= 2400; mib += 50) {
    question_.gpu.memory_bytes = mib * kBytesOfMiB;
    question_.gpu.reserved_bytes = 0;
    const std::set<std::string> fitting = Fitting();
    if (fitting.count("--weights int8") > 0) {
      EXPECT_THAT(fitting, Contains("--weights int4")) << mib;
    }
    any_int4_alone |= fitting.count("--weights int4") > 0 && fitting.count("--weights int8") == 0;
  }
  EXPECT_TRUE(any_int4_alone);
}

TEST_F(FittingSettingsTest, ALongSequenceFitsWithSmallerKvOrAShorterContext) {
  question_.context = 32768;
  question_.gpu.reserved_bytes = 0;
  // The least memory with any pool.
  int64_t mib = 900;
  for (question_.gpu.memory_bytes = mib * kBytesOfMiB; !PlanServing(question_)->refusal.ok();
       question_.gpu.memory_bytes = mib * kBytesOfMiB) {
    mib += 10;
  }
  const auto plan = PlanServing(question_);
  ASSERT_EQ(plan->sequences, 0);
  const std::set<std::string> fitting = Fitting();
  EXPECT_THAT(fitting, Contains("--weights int4"));
  const int64_t longest = plan->memory.kv_tokens();
  EXPECT_THAT(fitting, Contains(absl::StrCat("--context ", longest)));
  question_.context = static_cast<int>(longest) + 1;
  EXPECT_EQ(PlanServing(question_)->sequences, 0) << "one token more does not fit";
}

TEST_F(FittingSettingsTest, APoolThatIsTooLargeMayBeLeftToTheWorker) {
  question_.engine.num_blocks = 1 << 20;
  const std::set<std::string> fitting = Fitting();
  EXPECT_THAT(fitting, Contains("--num-blocks 0 --kv-cache-memory 0"));
}

TEST_F(FittingSettingsTest, TwoAtOnceWhereOneDoesNotDo) {
  question_.gpu.reserved_bytes = 0;
  // From the least memory in which any single setting fits, downwards.
  bool two = false;
  for (int64_t mib = 1500; mib > 300; mib -= 20) {
    question_.gpu.memory_bytes = mib * kBytesOfMiB;
    for (const std::string& flags : Fitting()) {
      two |= flags.rfind("--weights int4 --", 0) == 0;
    }
  }
  EXPECT_TRUE(two);
  question_.gpu.memory_bytes = 100 * kBytesOfMiB;
  EXPECT_THAT(Fitting(), IsEmpty()) << "nothing helps";
}

}  // namespace
}  // namespace baton::engine
