#include "common/gguf/generation_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::gguf {
namespace {

using ::baton::testing::GgufBytes;
using ::baton::testing::TinyGguf;
using ::testing::HasSubstr;

// The document, "none", or the error.
std::string Generation(const GgufBytes& bytes) {
  const testing::ModelDir dir;
  dir.Write("x.gguf", bytes.Bytes());
  const auto text = GenerationConfigJson(**File::Open(dir.PathOf("x.gguf")));
  if (!text.ok()) return text.status().ToString();
  return text->value_or("none");
}

TEST(GgufGenerationJsonTest, RefusesSamplersThatBatonDoesNotHave) {
  EXPECT_THAT(Generation(TinyGguf().Add("general.sampling.mirostat", 2u)),
              HasSubstr("general.sampling.mirostat: found one"));
  EXPECT_THAT(Generation(TinyGguf().Add("general.sampling.xtc_probability", 0.5f)),
              HasSubstr("general.sampling.xtc_probability: found one"));
  const auto penalty = [](float repeat, int32_t last) {
    return Generation(
        TinyGguf()
            .Add("general.sampling.mirostat", 0u)
            .Add("general.sampling.penalty_repeat", repeat)
            .AddRaw("general.sampling.penalty_last_n", 5, testing::LittleEndian(last)));
  };
  EXPECT_THAT(penalty(1.5, 64), HasSubstr("general.sampling.penalty_last_n: found 64"));
  EXPECT_THAT(penalty(1.5, -1), HasSubstr("repetition_penalty"));
  EXPECT_THAT(penalty(1, 64), HasSubstr("repetition_penalty"));
}

TEST(GgufGenerationJsonTest, RecommendedSamplingIsADefault) {
  EXPECT_EQ(Generation(TinyGguf()), "none");
  EXPECT_EQ(Generation(TinyGguf()
                           .Add("general.sampling.temp", 0.5f)
                           .Add("general.sampling.top_p", 0.75f)
                           .Add("general.sampling.top_k", 20u)),
            R"({"temperature": 0.5, "top_p": 0.75, "top_k": 20, "do_sample": true})");
}

}  // namespace
}  // namespace baton::gguf
