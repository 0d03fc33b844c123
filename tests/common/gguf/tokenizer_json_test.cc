#include "common/gguf/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/gguf/documents.h"
#include "common/json/json.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::gguf {
namespace {

using ::baton::testing::GgufBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

class GgufTokenizerJsonTest : public ::testing::Test {
 protected:
  // Of five tokens and one that pads.
  static GgufBytes Tokens(const std::string& pre) {
    GgufBytes bytes;
    bytes.Add("tokenizer.ggml.model", "gpt2")
        .Add("tokenizer.ggml.pre", pre)
        .Add("tokenizer.ggml.tokens",
             std::vector<std::string>{"a", "\"\xc4\xa0", "ab", "<|im_end|>", "<tool>", "[PAD5]"})
        .Add("tokenizer.ggml.token_type",
             std::vector<int32_t>{kNormal, kNormal, kNormal, kControl, kUserDefined, kUnused})
        .Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    return bytes;
  }
  // The document, or the error.
  std::string Document(const GgufBytes& bytes, const std::string& name) {
    dir_.Write("x.gguf", bytes.Bytes());
    const auto text = ReadDocument(dir_.PathOf("x.gguf"), name);
    if (!text.ok()) return text.status().ToString();
    if (!*text) return "none";
    EXPECT_TRUE(json::Parse(**text, name).ok()) << **text;
    return **text;
  }
  std::string Tokenizer(const GgufBytes& bytes) { return Document(bytes, "tokenizer.json"); }

  testing::ModelDir dir_;
};

TEST_F(GgufTokenizerJsonTest, WritesVocabularyAndAddedTokens) {
  const std::string text = Tokenizer(Tokens("qwen2"));
  EXPECT_THAT(text, HasSubstr("\"vocab\": {\"a\":0,\"\\\"\xc4\xa0\":1,\"ab\":2}"));
  EXPECT_THAT(text, HasSubstr(R"("merges": ["a b"])"));
  EXPECT_THAT(text, HasSubstr(R"({"id": 3, "content": "<|im_end|>", "single_word": false, )"
                              R"("lstrip": false, "rstrip": false, "normalized": false, )"
                              R"("special": true})"));
  EXPECT_THAT(text, HasSubstr(R"({"id": 4, "content": "<tool>", )"));
  EXPECT_THAT(text, Not(HasSubstr("PAD5")));
  EXPECT_THAT(text, HasSubstr(R"("normalizer": {"type": "NFC"})"));
  EXPECT_THAT(text, Not(HasSubstr("post_processor")));
}

TEST_F(GgufTokenizerJsonTest, AddsBosAndEosAsAsked) {
  EXPECT_THAT(Tokenizer(Tokens("llama-bpe")),
              HasSubstr("tokenizer.ggml.bos_token_id: found nothing, expected a token, which "
                        "tokenizer.ggml.add_bos_token adds"));
  GgufBytes both = Tokens("llama-bpe");
  both.Add("tokenizer.ggml.bos_token_id", 2u)
      .Add("tokenizer.ggml.eos_token_id", 3u)
      .Add("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(Tokenizer(both),
              HasSubstr(R"("single": [{"SpecialToken": {"id": "tokenizer.ggml.bos_token_id", )"
                        R"("type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, )"
                        R"({"SpecialToken": {"id": "tokenizer.ggml.eos_token_id", )"
                        R"("type_id": 0}}])"));
  EXPECT_THAT(Tokenizer(Tokens("llama-bpe").Add("tokenizer.ggml.add_bos_token", false)),
              Not(HasSubstr("post_processor")));
}

TEST_F(GgufTokenizerJsonTest, RefusesByName) {
  EXPECT_THAT(Tokenizer(GgufBytes().Add("tokenizer.ggml.model", "llama")),
              HasSubstr("tokenizer.ggml.model: found \"llama\", expected \"gpt2\""));
  EXPECT_THAT(Tokenizer(Tokens("viking")),
              HasSubstr("tokenizer.ggml.pre: found \"viking\", expected one of llama-bpe, "));
  EXPECT_THAT(Tokenizer(GgufBytes().Add("tokenizer.ggml.model", "gpt2")),
              HasSubstr("tokenizer.ggml.pre: found nothing"));
  EXPECT_EQ(Tokenizer(GgufBytes()), "none");
  GgufBytes untyped;
  untyped.Add("tokenizer.ggml.model", "gpt2")
      .Add("tokenizer.ggml.pre", "qwen2")
      .Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "\xff"});
  EXPECT_THAT(Tokenizer(untyped), HasSubstr("tokenizer.ggml.token_type: found 0 types"));
  GgufBytes bytes = untyped;
  bytes.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 6});
  EXPECT_THAT(Tokenizer(bytes), HasSubstr("tokenizer.ggml.token_type[1]: found 6, expected 1 to"));
  GgufBytes latin1 = untyped;
  latin1.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1});
  EXPECT_THAT(Tokenizer(latin1), HasSubstr("tokenizer.ggml.tokens[1]: found other bytes than"));
}

TEST_F(GgufTokenizerJsonTest, WritesChatTemplates) {
  GgufBytes bytes = Tokens("qwen2");
  EXPECT_EQ(Document(bytes, "tokenizer_config.json"), "{}");
  bytes.Add("tokenizer.ggml.eos_token_id", 3u).Add("tokenizer.chat_template", "{{ \"a\" }}");
  EXPECT_EQ(Document(bytes, "tokenizer_config.json"),
            R"({"eos_token": "<|im_end|>", "chat_template": "{{ \"a\" }}"})");
  bytes.Add("tokenizer.chat_template.tool_use", "b");
  EXPECT_THAT(Document(bytes, "tokenizer_config.json"),
              HasSubstr(R"("chat_template": [{"name": "default", "template": "{{ \"a\" }}"}, )"
                        R"({"name": "tool_use", "template": "b"}])"));
  bytes.Add("tokenizer.ggml.bos_token_id", 5u);  // pads
  EXPECT_THAT(Document(bytes, "tokenizer_config.json"),
              HasSubstr("tokenizer.ggml.bos_token_id: found 5, expected the id of a token"));
}

TEST_F(GgufTokenizerJsonTest, AnswersEndWithAllTokensOfThatKind) {
  const auto ends = [&](const GgufBytes& bytes) {
    dir_.Write("x.gguf", bytes.Bytes());
    return *EndTokenIds(**File::Open(dir_.PathOf("x.gguf")));
  };
  EXPECT_THAT(ends(GgufBytes()), ElementsAre());
  EXPECT_THAT(ends(GgufBytes().Add("tokenizer.ggml.eos_token_id", 7u)), ElementsAre(7));
  EXPECT_THAT(ends(Tokens("qwen2").Add("tokenizer.ggml.eot_token_id", 1u)), ElementsAre(1, 3));
}

}  // namespace
}  // namespace baton::gguf
