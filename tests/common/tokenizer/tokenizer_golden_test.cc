// Every string and every list of ids that make_golden.py gave to Hugging Face `tokenizers`: the
// same ids and the same text, from a tokenizer.json and from a GGUF file. argv: the folder that
// make_golden.py wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/tokenizer/incremental_detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/testing/seed.h"

namespace baton::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr int kMinStrings = 10'000;
constexpr int kMinSplits = 100;
constexpr int kMaxShownFailures = 10;

std::string& GoldenDir() {
  static std::string& dir = *new std::string;
  return dir;
}

struct Golden {
  bool has_text;
  std::string text;
  std::vector<int32_t> ids_with_special;
  std::vector<int32_t> ids;
  std::vector<int32_t> split_ids;  // ids of the text with its special tokens split
  std::string decoded;
  std::string decoded_without_special;
};

Golden Parse(const std::string& line) {
  const Json json = Json::parse(line);
  Golden golden;
  golden.has_text = !json[0].is_null();
  if (golden.has_text) {
    golden.text = json[0].get<std::string>();
    golden.ids_with_special = json[1].get<std::vector<int32_t>>();
    golden.split_ids = json[5].get<std::vector<int32_t>>();
  }
  golden.ids = json[2].get<std::vector<int32_t>>();
  golden.decoded = json[3].get<std::string>();
  golden.decoded_without_special = json[4].get<std::string>();
  return golden;
}

// The text of `ids` that come in chunks of random sizes. Every part must be whole UTF-8.
std::string DecodeInChunks(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                           bool skip_special_tokens, std::mt19937* random) {
  IncrementalDetokenizer detokenizer(tokenizer, skip_special_tokens);
  std::string text;
  for (size_t i = 0; i < ids.size();) {
    const size_t count = std::min<size_t>((*random)() % 4, ids.size() - i);
    const auto part = detokenizer.Append(absl::MakeConstSpan(ids).subspan(i, count));
    if (!part.ok()) return part.status().ToString();
    text += *part;
    i += count;
  }
  return text + detokenizer.Flush();
}

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string model = absl::StrCat(GoldenDir(), "/", GetParam());
    const std::string dir(absl::StripSuffix(model, ".gguf"));
    auto tokenizer = Tokenizer::Load(model);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status()
                                << "\nmake_golden.py and make_gguf.py write it";
    tokenizer_ = *std::move(tokenizer);
    std::ifstream file(dir + "/golden.jsonl");
    ASSERT_TRUE(file.is_open()) << dir;
    for (std::string line; std::getline(file, line);) goldens_.push_back(Parse(line));
  }

  // Counts failures and shows the first of them.
  template <class T>
  void Compare(const T& expected, const T& actual, const Golden& golden, const char* what) {
    if (expected == actual) return;
    if (++failures_ > kMaxShownFailures) return;
    ADD_FAILURE() << what << " differs for \"" << absl::CHexEscape(golden.text) << "\", ids "
                  << ::testing::PrintToString(golden.ids) << "\nexpected "
                  << ::testing::PrintToString(expected) << "\nfound    "
                  << ::testing::PrintToString(actual);
  }

  int CountSpecial(const std::vector<int32_t>& ids) const {
    return static_cast<int>(std::count_if(ids.begin(), ids.end(),
                                          [&](int32_t id) { return tokenizer_->IsSpecial(id); }));
  }

  void CompareEncoding(const Golden& golden) {
    const auto with_special = tokenizer_->Encode(golden.text, /*add_special_tokens=*/true);
    const auto without = tokenizer_->Encode(golden.text, /*add_special_tokens=*/false);
    ASSERT_TRUE(with_special.ok()) << with_special.status();
    ASSERT_TRUE(without.ok()) << without.status();
    Compare(golden.ids_with_special, *with_special, golden, "encoding with special tokens");
    Compare(golden.ids, *without, golden, "encoding");
    const ByteRange whole[] = {{0, golden.text.size()}};
    const auto split = tokenizer_->Encode(golden.text, /*add_special_tokens=*/false, whole);
    ASSERT_TRUE(split.ok()) << split.status();
    const bool fewer = CountSpecial(*split) < CountSpecial(golden.split_ids);
    if (fewer) {
      // Merges of Llama 2 and Mistral make "</s>" and "<unk>", which Hugging Face takes.
      Compare(*tokenizer_->Decode(golden.split_ids, /*skip_special_tokens=*/false),
              *tokenizer_->Decode(*split, /*skip_special_tokens=*/false), golden, "split text");
    } else {
      Compare(golden.split_ids, *split, golden, "encoding without special tokens");
    }
    if (golden.split_ids != golden.ids) ++splits_;
  }

  void CompareDecoding(const Golden& golden) {
    const auto& ids = golden.has_text ? golden.ids_with_special : golden.ids;
    const auto decoded = tokenizer_->Decode(ids, /*skip_special_tokens=*/false);
    const auto without = tokenizer_->Decode(ids, /*skip_special_tokens=*/true);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_TRUE(without.ok()) << without.status();
    Compare(golden.decoded, *decoded, golden, "decoding");
    Compare(golden.decoded_without_special, *without, golden, "decoding without special tokens");
    Compare(golden.decoded, DecodeInChunks(*tokenizer_, ids, false, &random_), golden,
            "incremental decoding");
    Compare(golden.decoded_without_special, DecodeInChunks(*tokenizer_, ids, true, &random_),
            golden, "incremental decoding without special tokens");
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Golden> goldens_;
  std::mt19937 random_{testing::TestSeed(1)};
  int failures_ = 0;
  int splits_ = 0;  // strings with special tokens
};

TEST_P(GoldenTest, EqualsHuggingFace) {
  int strings = 0;
  for (const Golden& golden : goldens_) {
    if (golden.has_text) {
      ++strings;
      CompareEncoding(golden);
    }
    CompareDecoding(golden);
  }
  EXPECT_EQ(failures_, 0);
  EXPECT_GE(strings, kMinStrings);
  EXPECT_GE(splits_, kMinSplits);
  RecordProperty("strings", strings);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest,
                         ::testing::Values("llama3", "qwen2", "qwen35", "qwen35.gguf", "gpt2",
                                           "tekken", "smollm", "phi4_mini", "seed_oss", "llama2",
                                           "mistral", "crossing", "split_kinds", "words",
                                           "llama3.gguf", "qwen2.gguf", "gpt2.gguf", "tekken.gguf",
                                           "smollm.gguf", "phi4_mini.gguf", "seed_oss.gguf"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{".", "_"}});
                         });

}  // namespace
}  // namespace baton::tokenizer

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    fprintf(stderr, "usage: %s <folder written by make_golden.py>\n", argv[0]);
    return 2;
  }
  baton::tokenizer::GoldenDir() = argv[1];
  return RUN_ALL_TESTS();
}
