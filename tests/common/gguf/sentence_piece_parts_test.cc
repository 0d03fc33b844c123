// The ids that SentencePiece gave to strings (make_sentence_piece_golden.py), from GGUF files with
// its models.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/gguf/documents.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::gguf {
namespace {

class SentencePieceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    file_.open("tests/common/gguf/sentence_piece/" + std::string(GetParam()) + ".jsonl");
    std::string line;
    ASSERT_TRUE(std::getline(file_, line)) << GetParam();
    const auto model = nlohmann::json::parse(line);
    std::vector<float> scores;
    for (const auto& piece : model.at("pieces")) {
      texts_.push_back(piece.at(0));
      scores.push_back(piece.at(1));
      types_.push_back(piece.at(2));
    }
    dir_.Write("x.gguf",
               testing::GgufBytes()
                   .Add("tokenizer.ggml.model", "llama")
                   .Add("tokenizer.ggml.tokens", texts_)
                   .Add("tokenizer.ggml.scores", scores)
                   .Add("tokenizer.ggml.token_type", types_)
                   .Add("tokenizer.ggml.add_space_prefix", model.at("add_space_prefix").get<bool>())
                   .Add("tokenizer.ggml.bos_token_id", 1u)
                   .Bytes());
    auto tokenizer = tokenizer::Tokenizer::Load(dir_.PathOf("x.gguf"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::ifstream file_;
  std::vector<std::string> texts_;
  std::vector<int32_t> types_;
  testing::ModelDir dir_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

TEST_P(SentencePieceTest, EncodesAsSentencePiece) {
  int strings = 0;
  for (std::string line; std::getline(file_, line); ++strings) {
    const auto expected = nlohmann::json::parse(line);
    const auto text = expected.at(0).get<std::string>();
    auto ids = expected.at(1).get<std::vector<int32_t>>();
    EXPECT_EQ(*tokenizer_->Encode(text, /*add_special_tokens=*/false), ids) << line;
    EXPECT_EQ(*tokenizer_->Decode(ids, /*skip_special_tokens=*/false), text) << line;
    ids.insert(ids.begin(), 1);  // which files of this kind add if they do not say
    EXPECT_EQ(*tokenizer_->Encode(text, /*add_special_tokens=*/true), ids) << line;
  }
  EXPECT_GE(strings, 300);
}

// A file of Gemma 4 with the same pieces has the merges that follow from scores, and no scores.
class ListedMergesTest : public SentencePieceTest {};

TEST_P(ListedMergesTest, EncodeTheSame) {
  const auto document =
      nlohmann::json::parse(**ReadDocument(dir_.PathOf("x.gguf"), "tokenizer.json"));
  std::vector<std::string> merges;
  for (const auto& merge : document.at("model").at("merges")) {
    merges.push_back(merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  }
  // Runs of spaces are pieces like others there.
  std::vector<std::string> texts = texts_;
  std::vector<int32_t> types = types_;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].find_first_not_of(' ') != std::string::npos) continue;
    texts[i] = absl::StrReplaceAll(texts[i], {{" ", "\xe2\x96\x81"}});
    types[i] = 1;
  }
  dir_.Write("y.gguf", testing::GgufBytes()
                           .Add("tokenizer.ggml.model", "gemma4")
                           .Add("tokenizer.ggml.tokens", texts)
                           .Add("tokenizer.ggml.token_type", types)
                           .Add("tokenizer.ggml.merges", merges)
                           .Add("tokenizer.ggml.bos_token_id", 1u)
                           .Bytes());
  const auto listed = tokenizer::Tokenizer::Load(dir_.PathOf("y.gguf"));
  ASSERT_TRUE(listed.ok()) << listed.status();
  int strings = 0;
  for (std::string line; std::getline(file_, line); ++strings) {
    const auto expected = nlohmann::json::parse(line);
    const auto text = expected.at(0).get<std::string>();
    const auto ids = expected.at(1).get<std::vector<int32_t>>();
    EXPECT_EQ(*(*listed)->Encode(text, /*add_special_tokens=*/false), ids) << line;
    EXPECT_EQ(*(*listed)->Decode(ids, /*skip_special_tokens=*/false), text) << line;
  }
  EXPECT_GE(strings, 300);
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceTest, ::testing::Values("llama", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Models, ListedMergesTest, ::testing::Values("gemma"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace baton::gguf
