#include "common/model/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/request_limits.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFile[] = R"({"eos_token_id": [3, 9], "do_sample": true, "temperature": 0.6,
    "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "max_new_tokens": 50})";

ModelConfig Model() {
  ModelConfig model;
  model.vocab_size = 100;
  model.eos_token_ids = {2};
  return model;
}

ModelConfig Overridden(const std::optional<std::string>& file, absl::string_view overrides) {
  ModelConfig model = Model();
  const absl::Status status = ReadGenerationConfig(file, "file", overrides, &model);
  EXPECT_TRUE(status.ok()) << status;
  return model;
}

TEST(GenerationConfigTest, WithoutAFileTheOverridesAreTheDefaults) {
  const ModelConfig model = Overridden(std::nullopt, R"({"temperature": 0.2, "top_p": 0.9})");
  EXPECT_EQ(model.temperature, 0.2f);
  EXPECT_EQ(model.top_p, 0.9f);
  EXPECT_EQ(model.top_k, std::nullopt);
  EXPECT_EQ(model.repetition_penalty, std::nullopt);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(2));
  for (const char* none : {"", "{}"}) {
    EXPECT_EQ(Overridden(std::nullopt, none).temperature, std::nullopt);
  }
}

TEST(GenerationConfigTest, EachOverrideReplacesTheFilesValueAndNoOther) {
  const ModelConfig plain = Overridden(kFile, "");
  EXPECT_EQ(plain.temperature, 0.6f);
  EXPECT_EQ(plain.min_p, 0.05f);
  const ModelConfig one = Overridden(kFile, R"({"temperature": 0})");
  EXPECT_EQ(one.temperature, 0.0f);
  EXPECT_EQ(one.top_p, 0.9f);
  EXPECT_EQ(one.top_k, 20);
  EXPECT_EQ(one.max_new_tokens, 50);
  EXPECT_THAT(one.eos_token_ids, ElementsAre(3, 9));
  const ModelConfig all = Overridden(kFile, R"({"eos_token_id": 5, "temperature": 2, "top_p": 1,
      "top_k": -1, "min_p": 1, "repetition_penalty": 2, "max_new_tokens": 1, "do_sample": true})");
  EXPECT_THAT(all.eos_token_ids, ElementsAre(5));
  EXPECT_EQ(all.temperature, 2.0f);
  EXPECT_EQ(all.top_p, 1.0f);
  EXPECT_EQ(all.top_k, -1);
  EXPECT_EQ(all.min_p, 1.0f);
  EXPECT_EQ(all.repetition_penalty, 2.0f);
  EXPECT_EQ(all.max_new_tokens, 1);
}

TEST(GenerationConfigTest, DoSampleDecidesOnTheFilesSampling) {
  const std::string greedy = R"({"do_sample": false, "temperature": 0.6})";
  EXPECT_EQ(Overridden(greedy, "").temperature, std::nullopt);
  EXPECT_EQ(Overridden(greedy, R"({"do_sample": true})").temperature, 0.6f);
  const ModelConfig added = Overridden(greedy, R"({"top_p": 0.9})");
  EXPECT_EQ(added.top_p, 0.9f) << "it was not named in vain";
  EXPECT_EQ(added.temperature, std::nullopt) << "that is the file's, with its do_sample";
  const ModelConfig without = Overridden(kFile, R"({"do_sample": false})");
  EXPECT_EQ(without.temperature, std::nullopt);
  EXPECT_EQ(without.top_k, std::nullopt);
  EXPECT_EQ(without.repetition_penalty, 1.1f) << "not a matter of sampling";
}

TEST(GenerationConfigTest, WrongOverridesAreRefusedByName) {
  std::string ids = "3";
  for (int i = 0; i < kMaxEosTokenIds; ++i) ids += ", 3";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"temprature": 0})", "temprature: unknown, expected one of temperature, top_p"},
      {R"({"num_beams": 1})", "num_beams: unknown"},
      {R"({"temperature": 2.5})", "temperature: found 2.5, expected a number in [0, 2]"},
      {R"({"temperature": "0.5"})", "temperature: found \"0.5\""},
      {R"({"temperature": null})", "temperature: found null"},
      {R"({"top_p": 0})", "top_p: found 0"},
      {R"({"top_k": 1.5})", "top_k: found 1.5"},
      {R"({"min_p": -0.1})", "min_p: found -0.1"},
      {R"({"repetition_penalty": 0})", "repetition_penalty: found 0"},
      {R"({"max_new_tokens": 0})", "max_new_tokens: found 0"},
      {R"({"eos_token_id": -1})", "eos_token_id: found -1"},
      {absl::StrCat("{\"eos_token_id\": [", ids, "]}"), "eos_token_id: found 769 ids"},
      {R"({"do_sample": 1})", "do_sample: found 1"},
      {R"({"do_sample": false, "top_p": 0.9})", "top_p: found beside do_sample false"},
      {R"({"top_p": 0.9, "top_p": 0.8})", "top_p"},
      {R"([0.5])", "found a list, expected an object"},
      {"temperature=0.5", "--override-generation-config"},
  };
  for (const auto& [overrides, message] : cases) {
    SCOPED_TRACE(overrides.substr(0, 80));
    ModelConfig model = Model();
    for (const absl::Status& status : {ReadGenerationConfig(kFile, "file", overrides, &model),
                                       CheckGenerationOverrides(overrides)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(message));
      EXPECT_THAT(std::string(status.message()), HasSubstr("--override-generation-config: "));
    }
  }
}

TEST(GenerationConfigTest, EndTokensMustBeInTheVocabulary) {
  const std::string overrides = R"({"eos_token_id": 100})";
  EXPECT_TRUE(CheckGenerationOverrides(overrides).ok()) << "of which nothing is known yet";
  ModelConfig model = Model();
  EXPECT_THAT(std::string(ReadGenerationConfig(std::nullopt, "", overrides, &model).message()),
              HasSubstr("--override-generation-config: eos_token_id: found 100"));
}

}  // namespace
}  // namespace baton::model
