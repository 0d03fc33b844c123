#include "common/gguf/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "common/gguf/documents.h"
#include "common/json/json.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::gguf {
namespace {

using ::baton::testing::GgufBytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

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
  // SentencePiece's pieces [text, score, type].
  using Pieces = std::vector<std::tuple<std::string, float, int32_t>>;
  static GgufBytes SentencePieces(const Pieces& pieces) {
    std::vector<std::string> texts;
    std::vector<float> scores;
    std::vector<int32_t> types;
    for (const auto& [text, score, type] : pieces) {
      texts.push_back(text);
      scores.push_back(score);
      types.push_back(type);
    }
    return GgufBytes()
        .Add("tokenizer.ggml.model", "llama")
        .Add("tokenizer.ggml.tokens", texts)
        .Add("tokenizer.ggml.scores", scores)
        .Add("tokenizer.ggml.token_type", types)
        .Add("tokenizer.ggml.add_bos_token", false);
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

TEST_F(GgufTokenizerJsonTest, KnowsThePipelinesOfFamilies) {
  const auto of = [&](const char* pre) {
    return Tokenizer(Tokens(pre).Add("tokenizer.ggml.add_bos_token", false));
  };
  const std::string llama = of("llama-bpe");
  EXPECT_EQ(Tokenizer(Tokens("smaug-bpe")), llama);  // SmolLM3, without BOS by default
  EXPECT_THAT(llama, HasSubstr(R"("ignore_merges": true)"));
  EXPECT_THAT(of("dbrx"), HasSubstr(R"("ignore_merges": false)"));
  EXPECT_THAT(of("dbrx"), HasSubstr(R"(|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|)"));
  EXPECT_EQ(of("refact"), of("smollm"));  // Granite 3
  EXPECT_THAT(of("gpt-4o"), HasSubstr(R"(+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n)"));
  EXPECT_THAT(of("seed-coder"), HasSubstr(R"(| ?[^\\s\\p{L}\\p{N}\\r\\n]+|)"));
  EXPECT_EQ(of("glm4"), of("dbrx"));
  // Qwen3.5: marks belong to words.
  EXPECT_THAT(of("qwen35"),
              AllOf(HasSubstr(R"([\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+)"),
                    HasSubstr(R"("normalizer": {"type": "NFC"})")));
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

TEST_F(GgufTokenizerJsonTest, WritesMergesOfSentencePieceByScore) {
  const std::string text = Tokenizer(SentencePieces({{"<unk>", 0, kUnknown},
                                                     {"<0x0A>", 0, kByte},
                                                     {"abc", -3, kNormal},
                                                     {"ab", -2, kNormal},
                                                     {"bc", -1, kUnused},
                                                     {"a", -4, kNormal},
                                                     {"b", -5, kNormal},
                                                     {"c", -6, kNormal},
                                                     {"ca", 0, kControl},
                                                     {"[PAD9]", 0, kUnused}}));
  // A control token is made by no merge; padding is no token; other unused pieces are.
  EXPECT_THAT(text, HasSubstr(R"("merges": [["b","c"],["a","b"],["ab","c"],["a","bc"]])"));
  EXPECT_THAT(text, HasSubstr(R"("type": "BPE", "unk_token": "<unk>", "fuse_unk": true, )"
                              R"("byte_fallback": true, "ignore_merges": false)"));
  EXPECT_THAT(text, HasSubstr(R"("vocab": {"<unk>":0,"<0x0A>":1,"abc":2,"ab":3,"bc":4,"a":5,)"
                              R"("b":6,"c":7,"ca":8})"));
  EXPECT_THAT(text, HasSubstr(R"("added_tokens": [{"id": 0, "content": "<unk>", )"));
  EXPECT_THAT(text, HasSubstr(R"({"id": 8, "content": "ca", )"));
  EXPECT_THAT(text, Not(HasSubstr("<0x0A>\", \"single")));
}

TEST_F(GgufTokenizerJsonTest, TakesRunsOfSpacesBeforeOtherMerges) {
  const Pieces pieces = {{"\u2581", -5, kNormal},      {"  ", -1000, kUserDefined},
                         {"   ", -1000, kUserDefined}, {"a", -6, kNormal},
                         {"\u2581a", -1, kNormal},     {"\n", -1000, kUserDefined},
                         {"x y", -1000, kUserDefined}};
  const std::string text = Tokenizer(SentencePieces(pieces));
  EXPECT_THAT(text, HasSubstr("\"merges\": [[\"\u2581\u2581\",\"\u2581\"],"
                              "[\"\u2581\",\"\u2581\u2581\"],[\"\u2581\",\"\u2581\"],"
                              "[\"\u2581\",\"a\"]]"));
  EXPECT_THAT(text, HasSubstr("{\"id\": 1, \"content\": \"\u2581\u2581\", "));
  EXPECT_THAT(text, HasSubstr(R"({"id": 5, "content": "\n", )"));
  EXPECT_THAT(text, HasSubstr(R"({"id": 6, "content": "x y", )"));
  // Where the run is a piece of the model already, the added token stays one of spaces.
  Pieces both = pieces;
  both.push_back({"\u2581\u2581", -2, kNormal});
  EXPECT_THAT(Tokenizer(SentencePieces(both)), HasSubstr(R"({"id": 1, "content": "  ", )"));
}

TEST_F(GgufTokenizerJsonTest, PutsASpaceBeforeTheTextAsAsked) {
  const Pieces pieces = {{"a", 0, kNormal}, {"[INST]", 0, kNormal}};
  const std::string by_default = Tokenizer(SentencePieces(pieces));
  EXPECT_THAT(by_default, HasSubstr(R"("normalizer": {"type": "Sequence", "normalizers": [)"
                                    "{\"type\": \"Prepend\", \"prepend\": \"\u2581\"}, "
                                    R"({"type": "Replace", "pattern": {"String": " "}, )"
                                    "\"content\": \"\u2581\"}]}"));
  EXPECT_THAT(by_default, HasSubstr(R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})"));
  const std::string without =
      Tokenizer(SentencePieces(pieces).Add("tokenizer.ggml.add_space_prefix", false));
  EXPECT_THAT(without, HasSubstr(R"("normalizer": {"type": "Replace", )"));
  EXPECT_THAT(without, Not(HasSubstr("Strip")));
  const std::string mistral =
      Tokenizer(SentencePieces({{"a", 0, kNormal}, {"[INST]", 0, kControl}}));
  EXPECT_THAT(mistral, HasSubstr("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": "
                                 "\"\u2581\", \"prepend_scheme\": \"first\", \"split\": false}"));
  EXPECT_THAT(mistral, Not(HasSubstr("normalizer")));
}

TEST_F(GgufTokenizerJsonTest, Phi3sChatTokensTakeTheSpaceBehindThem) {
  const std::string text =
      Tokenizer(SentencePieces({{"a", 0, kNormal}, {"<s>", 0, kControl}, {"<|user|>", 0, kControl}})
                    .Add("general.architecture", "phi3"));
  EXPECT_THAT(text, HasSubstr(R"("content": "<s>", "single_word": false, "lstrip": false, )"
                              R"("rstrip": false)"));
  EXPECT_THAT(text, HasSubstr(R"("content": "<|user|>", "single_word": false, "lstrip": false, )"
                              R"("rstrip": true)"));
}

TEST_F(GgufTokenizerJsonTest, RefusesSentencePieceByName) {
  const Pieces pieces = {{"a", 0, kNormal}};
  EXPECT_THAT(
      Tokenizer(SentencePieces(pieces).Add("tokenizer.ggml.remove_extra_whitespaces", true)),
      HasSubstr("tokenizer.ggml.remove_extra_whitespaces: found a normalization"));
  EXPECT_THAT(Tokenizer(SentencePieces(pieces).Add("tokenizer.ggml.precompiled_charsmap",
                                                   std::vector<int32_t>{1})),
              HasSubstr("tokenizer.ggml.precompiled_charsmap: found a normalization"));
  EXPECT_THAT(Tokenizer(SentencePieces(pieces).Add("tokenizer.ggml.precompiled_charsmap",
                                                   std::vector<int32_t>{})),
              HasSubstr("\"vocab\": {\"a\":0}"));
  EXPECT_THAT(Tokenizer(SentencePieces({{"a", NAN, kNormal}})),
              HasSubstr("tokenizer.ggml.scores[0]: found no finite number"));
  EXPECT_THAT(Tokenizer(SentencePieces({{"<0x0a>", 0, kByte}})),
              HasSubstr("tokenizer.ggml.tokens[0]: found another text for a byte"));
  EXPECT_THAT(Tokenizer(SentencePieces({{std::string(1025, 'a'), 0, kNormal}})),
              HasSubstr("tokenizer.ggml.tokens[0]: found 1025 bytes, expected at most 1024"));
  EXPECT_THAT(Tokenizer(SentencePieces({{"a", 0, 7}})),
              HasSubstr("tokenizer.ggml.token_type[0]: found 7, expected 1 to 6"));
  EXPECT_THAT(Tokenizer(GgufBytes()
                            .Add("tokenizer.ggml.model", "llama")
                            .Add("tokenizer.ggml.tokens", std::vector<std::string>{"a"})),
              HasSubstr("tokenizer.ggml.scores: found 0 scores, expected one for each of 1"));
}

// SentencePiece's pieces and bytes, with merges as byte-level BPE has them.
TEST_F(GgufTokenizerJsonTest, Gemma4HasPiecesAndMerges) {
  const std::vector<std::string> texts = {"<bos>",
                                          "a",
                                          "\xe2\x96\x81",
                                          "\xe2\x96\x81"
                                          "a",
                                          "<0x0A>",
                                          "<|tool_call>"};
  const auto gemma = [&](std::vector<int32_t> types, const std::vector<std::string>& merges) {
    types[0] = kControl;
    return GgufBytes()
        .Add("tokenizer.ggml.model", "gemma4")
        .Add("tokenizer.ggml.tokens", texts)
        .Add("tokenizer.ggml.token_type", types)
        .Add("tokenizer.ggml.bos_token_id", 0u)
        .Add("tokenizer.ggml.merges", merges);
  };
  const std::vector<int32_t> types = {kControl, kNormal, kNormal, kNormal, kByte, kUserDefined};
  const auto bytes = [&] { return gemma(types, {"\xe2\x96\x81 a"}); };
  const std::string text = Tokenizer(bytes());
  EXPECT_THAT(text, AllOf(HasSubstr("\"merges\": [\"\xe2\x96\x81 a\"]"),
                          HasSubstr(R"("byte_fallback": true)"), HasSubstr(R"("fuse_unk": true)"),
                          HasSubstr(R"("type": "Replace", "pattern": {"String": " "})")))
      << text;
  EXPECT_THAT(text, AllOf(HasSubstr(R"("content": "<|tool_call>")"), Not(HasSubstr("Prepend")),
                          HasSubstr("TemplateProcessing")));
  // Early files deny the first token by mistake.
  EXPECT_EQ(Tokenizer(bytes().Add("tokenizer.ggml.add_bos_token", false)), text);
  EXPECT_EQ(Tokenizer(bytes().Add("tokenizer.ggml.add_space_prefix", false)), text);
  EXPECT_THAT(Tokenizer(gemma({0, 1, 1, 1, 7, 1}, {})),
              HasSubstr("tokenizer.ggml.token_type[4]: found 7, expected 1 to 6"));
  EXPECT_THAT(Tokenizer(gemma(types, {"a \xff"})),
              HasSubstr("tokenizer.ggml.merges[0]: found other bytes than UTF-8"));
  EXPECT_THAT(Tokenizer(GgufBytes()
                            .Add("tokenizer.ggml.model", "gemma4")
                            .Add("tokenizer.ggml.tokens", texts)
                            .Add("tokenizer.ggml.token_type", types)),
              HasSubstr("tokenizer.ggml.merges: found nothing"));
}

// Merges grow with the square of a piece's length: the document must not.
TEST_F(GgufTokenizerJsonTest, BoundsTheMergesOfLongPieces) {
  Pieces pieces;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    for (int length = 1; length <= 1024; ++length) {
      pieces.push_back({std::string(length, letter), 0, kNormal});
    }
  }
  EXPECT_THAT(Tokenizer(SentencePieces(pieces)),
              HasSubstr("tokenizer.ggml.tokens: found more than 67108864 bytes of merges"));
}

TEST_F(GgufTokenizerJsonTest, RefusesByName) {
  EXPECT_THAT(Tokenizer(GgufBytes().Add("tokenizer.ggml.model", "t5")),
              HasSubstr("tokenizer.ggml.model: found \"t5\", expected \"gpt2\" (byte-level BPE), "
                        "\"llama\" (SentencePiece BPE) or \"gemma4\""));
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
  Pieces pieces = {{"</s>", 0, kUserDefined}};  // as in Gemma, where it is HTML
  for (const char* text : {"<end_of_turn>", "<|end|>", "[|endofturn|]", "<seed:eos>", "</s>",
                           "<|endoftext|>", "<|end_of_text|>", "<|user|>"}) {
    pieces.push_back({text, 0, kControl});
  }
  EXPECT_THAT(ends(SentencePieces(pieces)), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  // Gemma 4's converter has some special tokens as the user's.
  const auto gemma = [&](const char* model) {
    return ends(GgufBytes()
                    .Add("tokenizer.ggml.model", model)
                    .Add("tokenizer.ggml.tokens",
                         std::vector<std::string>{"a", "<turn|>", "<|tool_response>", "</s>"})
                    .Add("tokenizer.ggml.token_type",
                         std::vector<int32_t>{kNormal, kControl, kUserDefined, kNormal}));
  };
  EXPECT_THAT(gemma("gemma4"), ElementsAre(1, 2));
  EXPECT_THAT(gemma("llama"), ElementsAre(1));
}

}  // namespace
}  // namespace baton::gguf
