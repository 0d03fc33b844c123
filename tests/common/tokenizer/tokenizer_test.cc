#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "tests/common/tokenizer/tokenizer_json.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::tokenizer {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The tokens of `text`, by name.
std::string Tokens(const Tokenizer& tokenizer, absl::string_view text, bool special = false) {
  const auto ids = tokenizer.Encode(text, special);
  if (!ids.ok()) return ids.status().ToString();
  std::vector<std::string> names;
  for (const int32_t id : *ids) names.push_back(*tokenizer.IdToToken(id));
  return absl::StrJoin(names, "|");
}

// Letters, digits and some signs; each word is a token too, so that the words show.
Json Letters() {
  std::vector<std::string> tokens;
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyz0123456789 -.\n")) {
    tokens.emplace_back(1, c);
  }
  tokens.insert(tokens.end(), {"▁", "é", "?", "ab", "abc", "cd", "▁a", "▁▁", "A"});
  Json json = TokenizerJson(tokens);
  json["model"]["merges"] = {"a b", {"ab", "c"}, "c d", "▁ a", "▁ ▁"};
  return json;
}

TEST(TokenizerTest, MergesByRankFromTheLeft) {
  const auto tokenizer = MakeTokenizer(Letters());
  EXPECT_EQ(Tokens(*tokenizer, "abcd"), "abc|d");
  EXPECT_EQ(Tokens(*tokenizer, "bcdab"), "b|cd|ab");
  EXPECT_EQ(Tokens(*tokenizer, ""), "");
  EXPECT_EQ(tokenizer->vocab_size(), 49);
  EXPECT_EQ(tokenizer->TokenToId("abc"), 44);
  EXPECT_EQ(tokenizer->TokenToId("zz"), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(49), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(-1), std::nullopt);
}

TEST(TokenizerTest, UnknownCharacters) {
  Json json = Letters();
  EXPECT_EQ(Tokens(*MakeTokenizer(json), "aXYb"), "ab");  // dropped, as Hugging Face does
  json["model"]["unk_token"] = "?";
  EXPECT_EQ(Tokens(*MakeTokenizer(json), "aXYb"), "a|?|?|b");
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(Tokens(*MakeTokenizer(json), "aXYb"), "a|?|b");
}

TEST(TokenizerTest, ByteFallback) {
  Json json = TokenizerJson({"a", "?", "<0xC3>", "<0xA9>"});
  json["model"]["byte_fallback"] = true;
  json["model"]["unk_token"] = "?";
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  const auto tokenizer = MakeTokenizer(json);
  EXPECT_EQ(Tokens(*tokenizer, "aé"), "a|<0xC3>|<0xA9>");
  EXPECT_EQ(Tokens(*tokenizer, "aè"), "a|?");
  EXPECT_EQ(*tokenizer->Decode({0, 2, 3, 0}, false), "aéa");
  EXPECT_EQ(*tokenizer->Decode({2, 3, 2}, false), "\uFFFD\uFFFD\uFFFD");
}

TEST(TokenizerTest, IgnoreMergesTakesWholeWordsFirst) {
  Json json = ByteLevelJson();
  json["model"]["vocab"]["Ġabc"] = 256;
  EXPECT_EQ(Tokens(*MakeTokenizer(json), " abc"), "Ġ|a|b|c");
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Tokens(*MakeTokenizer(json), "x abc"), "x|Ġabc");
}

TEST(TokenizerTest, Normalizers) {
  const auto normalized = [](Json normalizer, absl::string_view text) {
    Json json = Letters();
    json["normalizer"] = normalizer;
    return Tokens(*MakeTokenizer(json), text);
  };
  EXPECT_EQ(normalized({{"type", "NFC"}}, "e\u0301"), "é");
  EXPECT_EQ(normalized({{"type", "NFD"}}, "é"), "e");
  EXPECT_EQ(normalized({{"type", "NFKC"}}, "\uFB01"), "f|i");
  EXPECT_EQ(normalized({{"type", "NFKD"}}, "\u2460"), "1");
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "XY\u0130"), "x|y|i");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "▁"}}, "ab"), "▁|ab");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "▁"}}, ""), "");
  EXPECT_EQ(
      normalized({{"type", "Replace"}, {"pattern", {{"String", "x"}}}, {"content", "ab"}}, "xzx"),
      "ab|z|ab");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", "\\d+"}}}, {"content", "-"}},
                       "a12b3"),
            "a|-|b|-");
  EXPECT_EQ(
      normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}, " \u3000a "),
      "a");
  EXPECT_EQ(normalized({{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Lowercase"}}, {{"type", "Prepend"}, {"prepend", "a"}}}}},
                       "BC"),
            "abc");
}

// The words that a pre-tokenizer makes of `text`, found by a model that merges everything.
std::string Words(const Json& pre_tokenizer, absl::string_view text) {
  std::vector<std::string> tokens;
  Json json = Letters();
  json["pre_tokenizer"] = pre_tokenizer;
  json["model"]["ignore_merges"] = true;
  // Every substring is a token.
  int id = 100;
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t n = 1; i + n <= text.size(); ++n) {
      const std::string part(text.substr(i, n));
      if (!json["model"]["vocab"].contains(part)) json["model"]["vocab"][part] = id++;
    }
  }
  return Tokens(*MakeTokenizer(json), text);
}

Json SplitJson(Json pattern, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

TEST(TokenizerTest, SplitBehaviors) {
  const Json dash = {{"String", "-"}};
  EXPECT_EQ(Words(SplitJson(dash, "Isolated"), "ab--c"), "ab|-|-|c");
  EXPECT_EQ(Words(SplitJson(dash, "Removed"), "ab--c"), "ab|c");
  EXPECT_EQ(Words(SplitJson(dash, "MergedWithPrevious"), "-ab--c"), "-|ab-|-|c");
  EXPECT_EQ(Words(SplitJson(dash, "MergedWithNext"), "ab--c-"), "ab|-|-c|-");
  EXPECT_EQ(Words(SplitJson(dash, "Contiguous"), "ab--c"), "ab|--|c");
  EXPECT_EQ(Words(SplitJson({{"Regex", "[a-z]+"}}, "Removed", true), "ab--c"), "ab|c");
  EXPECT_EQ(Words(SplitJson({{"Regex", "(?=c)"}}, "Isolated"), "abcdc"), "ab|cd|c");
}

TEST(TokenizerTest, ClassSplitters) {
  EXPECT_EQ(Words({{"type", "Digits"}, {"individual_digits", true}}, "a12b"), "a|1|2|b");
  EXPECT_EQ(Words({{"type", "Digits"}, {"individual_digits", false}}, "a12b"), "a|12|b");
  EXPECT_EQ(Words({{"type", "Punctuation"}}, "a.-b"), "a|.|-|b");
  EXPECT_EQ(Words({{"type", "Punctuation"}, {"behavior", "Contiguous"}}, "a.-b"), "a|.-|b");
  EXPECT_EQ(Words({{"type", "WhitespaceSplit"}}, " a.  b\n"), "a.|b");
  EXPECT_EQ(Words({{"type", "Whitespace"}}, " a.  b\n"), "a|.|b");
  EXPECT_EQ(Words({{"type", "Sequence"},
                   {"pretokenizers",
                    {{{"type", "WhitespaceSplit"}}, SplitJson({{"String", "-"}}, "Isolated")}}},
                  "a-b c"),
            "a|-|b|c");
}

TEST(TokenizerTest, MetaspaceOldAndNew) {
  Json json = Letters();
  json["added_tokens"] = {AddedTokenJson(60, "<x>")};
  const auto tokens = [&](Json metaspace, absl::string_view text) {
    metaspace["type"] = "Metaspace";
    metaspace["replacement"] = "▁";
    json["pre_tokenizer"] = metaspace;
    return Tokens(*MakeTokenizer(json), text);
  };
  EXPECT_EQ(tokens({{"prepend_scheme", "always"}}, "a<x>b a"), "▁a|<x>|▁|b|▁a");
  EXPECT_EQ(tokens({{"prepend_scheme", "first"}}, "a<x>b a"), "▁a|<x>|b|▁a");
  EXPECT_EQ(tokens({{"prepend_scheme", "first"}}, "<x>b"), "<x>|b");
  EXPECT_EQ(tokens({{"prepend_scheme", "never"}}, "a a"), "a|▁a");
  EXPECT_EQ(tokens({{"add_prefix_space", true}}, " a"), "▁a");
  EXPECT_EQ(tokens({{"add_prefix_space", false}, {"prepend_scheme", "never"}}, "a"), "a");
  EXPECT_EQ(tokens({{"split", true}}, "a  a"), "▁a|▁|▁a");
  EXPECT_EQ(tokens({{"split", false}}, "a  b"), "▁a|▁▁|b");
}

TEST(TokenizerTest, AddedTokens) {
  Json json = Letters();
  const auto with = [&](const char* flag) {
    Json token = AddedTokenJson(50, "<x>", /*special=*/false);
    if (flag != nullptr) token[flag] = true;
    json["added_tokens"] = {token, AddedTokenJson(51, "<x><y>"), AddedTokenJson(52, "<")};
    return MakeTokenizer(json);
  };
  EXPECT_EQ(Tokens(*with(nullptr), "a <x> <x><y><"), "a| |<x>| |<x><y>|<");
  EXPECT_EQ(Tokens(*with("lstrip"), "a \n<x> b"), "a|<x>| |b");
  EXPECT_EQ(Tokens(*with("rstrip"), "a <x> \u3000b"), "a| |<x>|b");
  EXPECT_EQ(Tokens(*with("single_word"), "a <x> b<x>"), "a| |<x>| |b|x");
  EXPECT_TRUE(with(nullptr)->IsSpecial(51));
  EXPECT_FALSE(with(nullptr)->IsSpecial(50));
  EXPECT_FALSE(with(nullptr)->IsSpecial(1000));
  EXPECT_EQ(with(nullptr)->vocab_size(), 53);
}

TEST(TokenizerTest, NormalizedAddedTokensAreFoundAfterNormalisation) {
  Json json = Letters();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = {AddedTokenJson(50, "Day", false), AddedTokenJson(51, "Way", false)};
  json["added_tokens"][0]["normalized"] = true;
  EXPECT_EQ(Tokens(*MakeTokenizer(json), "aDAYb"), "a|Day|b");
  EXPECT_EQ(Tokens(*MakeTokenizer(json), "aWay"), "a|Way");
  EXPECT_EQ(Tokens(*MakeTokenizer(json), "away"), "a|w|a|y");
}

TEST(TokenizerTest, PostProcessors) {
  Json json = Letters();
  json["added_tokens"] = {AddedTokenJson(50, "<s>"), AddedTokenJson(51, "</s>")};
  json["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
           {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
         {"pair", Json::array()},
         {"special_tokens",
          {{"<s>", {{"id", "<s>"}, {"ids", {50}}, {"tokens", {"<s>"}}}},
           {"</s>", {{"id", "</s>"}, {"ids", {51}}, {"tokens", {"</s>"}}}}}}}}}};
  const auto tokenizer = MakeTokenizer(json);
  EXPECT_EQ(Tokens(*tokenizer, "a", true), "<s>|a|</s>");
  EXPECT_EQ(Tokens(*tokenizer, "a", false), "a");
  EXPECT_EQ(Tokens(*tokenizer, "", true), "<s>|</s>");
  EXPECT_EQ(*tokenizer->Decode({50, 0, 51}, true), "a");
  EXPECT_EQ(*tokenizer->Decode({50, 0, 51}, false), "<s> a </s>");  // no decoder: joined by spaces
}

TEST(TokenizerTest, TextThatIsNotUtf8IsRefusedWithItsPlace) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  for (const char* bad : {"abc\xFF", "abc\xC3", "abc\xED\xA0\x80", "abc\xF4\x90\x80\x80"}) {
    const auto ids = tokenizer->Encode(bad, true);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorReason(ids.status()), "INVALID_UTF8");
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr("at byte 3 "));
  }
  EXPECT_EQ(Tokens(*tokenizer, absl::string_view("\0", 1)), "Ā");
}

TEST(TokenizerTest, UnknownIdsAreRefused) {
  const auto tokenizer = MakeTokenizer(ByteLevelJson());
  for (const int32_t id : {-1, 256, 1 << 30}) {
    const auto text = tokenizer->Decode({0, id}, true);
    EXPECT_EQ(ErrorReason(text.status()), "UNKNOWN_TOKEN");
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(absl::StrCat("found ", id)));
  }
}

TEST(TokenizerTest, TokensHaveTheBytesThatTheyAddToAText) {
  Json json = ByteLevelJson();
  json["model"]["vocab"][BytesToNames("a\xC3")] = 256;
  json["added_tokens"] = {AddedTokenJson(257, "<|x|>"), AddedTokenJson(258, "日", false)};
  const auto byte_level = MakeTokenizer(json);
  EXPECT_EQ(byte_level->BytesOf(0xC3), "\xC3");
  EXPECT_EQ(byte_level->BytesOf(256), "a\xC3");
  EXPECT_EQ(byte_level->BytesOf(257), "<|x|>");
  EXPECT_EQ(byte_level->BytesOf(258), "日") << "no byte's name";
  EXPECT_EQ(byte_level->BytesOf(259), std::nullopt);
  EXPECT_TRUE(byte_level->IsSkipped(257));
  EXPECT_FALSE(byte_level->IsSkipped(258));
  EXPECT_FALSE(byte_level->IsSkipped(259));
  const auto bytes = byte_level->TokenBytes();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ((*bytes)[256], "a\xC3");
  EXPECT_EQ((*bytes)[257], "") << "special";

  const auto fallback = MakeTokenizer(FallbackJson());
  EXPECT_EQ(fallback->BytesOf(0xC3), "\xC3");
  EXPECT_EQ(fallback->BytesOf(256), " Hello") << "in the middle of a text";
  EXPECT_EQ(fallback->BytesOf(260), "é");
  EXPECT_EQ(fallback->BytesOf(261), "<s>");
}

TEST(TokenizerTest, CountsTheSpecialTokensThatAreAdded) {
  Json json = TokenizerJson({"a", "<s>", "</s>"});
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                              {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}},
                              {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
                            {"pair", Json::array()},
                            {"special_tokens",
                             {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}},
                              {"</s>", {{"id", "</s>"}, {"ids", {2}}, {"tokens", {"</s>"}}}}}}};
  const auto counts = MakeTokenizer(json)->added_special_tokens();
  EXPECT_EQ(counts.before, 1);
  EXPECT_EQ(counts.after, 2);
  EXPECT_EQ(MakeTokenizer(ByteLevelJson())->added_special_tokens().before, 0);
}

TEST(TokenizerTest, LongRunsAreLinear) {
  Json json = ByteLevelJson();
  json["model"]["vocab"]["__"] = 256;
  json["model"]["vocab"]["____"] = 257;
  json["model"]["vocab"]["aa"] = 258;
  json["model"]["merges"] = {"_ _", "__ __", "a a"};
  const auto tokenizer = MakeTokenizer(json);
  EXPECT_EQ(tokenizer->Encode(std::string(4 << 20, '_'), false)->size(), size_t{1} << 20);
  EXPECT_EQ(tokenizer->Encode(std::string((4 << 20) + 1, 'a'), false)->size(),
            (size_t{2} << 20) + 1);
  for (const char* run : {" ", "\n", " \n", "<", "1", "'s", "é"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += run;
    const auto ids = tokenizer->Encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer->Decode(*ids, false), text);
  }
}

TEST(TokenizerTest, FingerprintIsOfTheBytes) {
  const Json json = ByteLevelJson();
  const auto a = Tokenizer::FromJson(json.dump(), "a");
  const auto b = Tokenizer::FromJson(json.dump(), "b");
  const auto c = Tokenizer::FromJson(json.dump(1), "c");
  EXPECT_EQ((*a)->fingerprint(), (*b)->fingerprint());
  EXPECT_NE((*a)->fingerprint(), (*c)->fingerprint());
}

TEST(TokenizerTest, LoadNamesTheFile) {
  const auto missing = Tokenizer::Load("/nonexistent");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nonexistent/tokenizer.json"));
  const std::string dir = ::testing::TempDir();
  std::ofstream(dir + "/tokenizer.json") << ByteLevelJson().dump();
  EXPECT_TRUE(Tokenizer::Load(dir).ok());
}

TEST(TokenizerTest, LoadReadsAGgufFile) {
  const baton::testing::ModelDir dir;
  baton::testing::GgufBytes bytes;
  dir.Write("none.gguf", bytes.Bytes());
  bytes.Add("tokenizer.ggml.model", "gpt2")
      .Add("tokenizer.ggml.pre", "gpt-2")
      .Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<|end|>"})
      .Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3});
  dir.Write("unmerged.gguf", bytes.Bytes());
  bytes.Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  dir.Write("model.gguf", bytes.Bytes());
  dir.Write("MODEL.GGUF", bytes.Bytes());
  const auto tokenizer = Tokenizer::Load(dir.PathOf("model.gguf"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("ab<|end|>b", true), (std::vector<int32_t>{2, 3, 1}));
  EXPECT_TRUE((*tokenizer)->IsSpecial(3));
  EXPECT_EQ((*Tokenizer::Load(dir.PathOf("MODEL.GGUF")))->fingerprint(),
            (*tokenizer)->fingerprint());
  for (const auto& [file, reason, message] :
       {std::tuple("gone.gguf", "NO_TOKENIZER", "gone.gguf: cannot open"),
        {"none.gguf", "NO_TOKENIZER", "none.gguf: found no tokenizer"},
        {"unmerged.gguf", "BAD_TOKENIZER",
         "unmerged.gguf: tokenizer.ggml.merges: found nothing"}}) {
    const absl::Status status = Tokenizer::Load(dir.PathOf(file)).status();
    EXPECT_EQ(ErrorReason(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

// What is wrong with a file, and what the message must say.
struct BadFile {
  const char* name;
  std::function<void(Json*)> spoil;
  std::string message;
};

void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }

class BadFileTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsRefusedWithItsPlace) {
  Json json = Letters();
  GetParam().spoil(&json);
  const auto tokenizer = Tokenizer::FromJson(json.dump(), "dir/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(tokenizer.status()), "BAD_TOKENIZER");
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("dir/tokenizer.json: "));
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(GetParam().message));
}

Json& Model(Json* json) { return (*json)["model"]; }

INSTANTIATE_TEST_SUITE_P(
    Files, BadFileTest,
    ::testing::Values(
        BadFile{"array", [](Json* j) { *j = Json::array(); }, "the file: expected an object"},
        BadFile{"version", [](Json* j) { (*j)["version"] = "2.0"; }, "version: expected \"1.0\""},
        BadFile{"key", [](Json* j) { (*j)["extra"] = 1; }, "extra: not an option"},
        BadFile{"no_model", [](Json* j) { j->erase("model"); }, "\"model\" is missing"},
        BadFile{"type", [](Json* j) { Model(j)["type"] = "Unigram"; }, "model.type: expected BPE"},
        BadFile{"option", [](Json* j) { Model(j)["x"] = 1; }, "model.x: not an option"},
        BadFile{"dropout", [](Json* j) { Model(j)["dropout"] = 0.1; }, "model.dropout: "},
        BadFile{"suffix", [](Json* j) { Model(j)["end_of_word_suffix"] = "</w>"; },
                "model.end_of_word_suffix: expected null"},
        BadFile{"empty", [](Json* j) { Model(j)["vocab"] = Json::object(); }, "model.vocab: "},
        BadFile{"same_id", [](Json* j) { Model(j)["vocab"]["zz"] = 1; },
                "model.vocab.zz: the id 1 is already"},
        BadFile{"negative", [](Json* j) { Model(j)["vocab"]["zz"] = -1; }, "model.vocab.zz: "},
        BadFile{"huge", [](Json* j) { Model(j)["vocab"]["zz"] = 2000000000; }, "model.vocab.zz: "},
        BadFile{"larger", [](Json* j) { Model(j)["vocab"]["zz"] = 1e30; }, "model.vocab.zz: "},
        BadFile{"float", [](Json* j) { Model(j)["vocab"]["zz"] = 1.5; }, "found 1.5"},
        BadFile{"string", [](Json* j) { Model(j)["vocab"]["zz"] = "1"; }, "found \"1\""},
        BadFile{"merge", [](Json* j) { Model(j)["merges"].push_back("a nope"); },
                "model.merges[5]: the token \"nope\" is not in model.vocab"},
        BadFile{"merged", [](Json* j) { Model(j)["merges"].push_back("y z"); },
                "model.merges[5]: the token \"yz\""},
        BadFile{"sides", [](Json* j) { Model(j)["merges"].push_back("a b c"); }, "two tokens"},
        BadFile{"side",
                [](Json* j) {
                  Model(j)["merges"].push_back({"a", 1});
                },
                "merges[5][1]"},
        BadFile{"merge_type", [](Json* j) { Model(j)["merges"].push_back(7); }, "two tokens"},
        BadFile{"unknown", [](Json* j) { Model(j)["unk_token"] = "<nope>"; }, "model.unk_token: "},
        BadFile{"normalizer",
                [](Json* j) {
                  (*j)["normalizer"] = {{"type", "Nmt"}};
                },
                "normalizer.type: expected a normalizer of"},
        BadFile{"nested",
                [](Json* j) {
                  (*j)["normalizer"] = {{"type", "Sequence"},
                                        {"normalizers", {{{"type", "BertNormalizer"}}}}};
                },
                "normalizer.normalizers[0].type: "},
        BadFile{"pre_tokenizer",
                [](Json* j) {
                  (*j)["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
                },
                "pre_tokenizer.type: expected a pre-tokenizer of"},
        BadFile{"regex",
                [](Json* j) {
                  (*j)["pre_tokenizer"] = SplitJson({{"Regex", "(a"}}, "Removed");
                },
                "pre_tokenizer.pattern: a regular expression expected"},
        BadFile{"behavior",
                [](Json* j) {
                  (*j)["pre_tokenizer"] = SplitJson({{"String", "a"}}, "Gone");
                },
                "pre_tokenizer.behavior: expected Isolated"},
        BadFile{"no_pattern",
                [](Json* j) {
                  (*j)["pre_tokenizer"] = SplitJson({{"String", ""}}, "Removed");
                },
                "at least one character"},
        BadFile{"metaspace",
                [](Json* j) {
                  (*j)["pre_tokenizer"] = {
                      {"type", "Metaspace"}, {"replacement", "ab"}, {"prepend_scheme", "always"}};
                },
                "pre_tokenizer.replacement: expected one character"},
        BadFile{"decoder",
                [](Json* j) {
                  (*j)["decoder"] = {{"type", "CTC"}};
                },
                "decoder.type: "},
        BadFile{"decoder_order",
                [](Json* j) {
                  (*j)["decoder"] = {
                      {"type", "Sequence"},
                      {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}};
                },
                "decoder.decoders[1]: ByteFallback after Fuse"},
        BadFile{"processor",
                [](Json* j) {
                  (*j)["post_processor"] = {{"type", "BertProcessing"}};
                },
                "post_processor.type: "},
        BadFile{"added_flag",
                [](Json* j) {
                  (*j)["added_tokens"] = {{{"id", 60}, {"content", "<x>"}}};
                },
                "added_tokens[0]: \"single_word\" is missing"},
        BadFile{"added_id", [](Json* j) { (*j)["added_tokens"] = {AddedTokenJson(1, "<x>")}; },
                "added_tokens[0]: the id 1 is that of another token"},
        BadFile{"added_other", [](Json* j) { (*j)["added_tokens"] = {AddedTokenJson(60, "a")}; },
                "added_tokens[0]: expected the id 0"},
        BadFile{"added_twice",
                [](Json* j) {
                  (*j)["added_tokens"] = {AddedTokenJson(60, "<x>"), AddedTokenJson(61, "<x>")};
                },
                "added_tokens[1]: the content"},
        BadFile{"added_huge",
                [](Json* j) { (*j)["added_tokens"] = {AddedTokenJson(100000000, "<x>")}; },
                "added_tokens[0].id: expected an integer"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(TokenizerTest, MalformedJsonIsRefused) {
  const std::string good = ByteLevelJson().dump();
  for (size_t i = 0; i < good.size(); i += 7) {
    EXPECT_FALSE(Tokenizer::FromJson(good.substr(0, i), "cut").ok());
  }
  const std::string deep = std::string(1 << 20, '[');
  EXPECT_THAT(std::string(Tokenizer::FromJson(deep, "deep").status().message()),
              HasSubstr("nested deeper"));
  EXPECT_THAT(
      std::string(Tokenizer::FromJson(R"({"model": 1, "model": 2})", "twice").status().message()),
      HasSubstr("\"model\" appears twice"));
  EXPECT_FALSE(Tokenizer::FromJson("", "empty").ok());
  EXPECT_FALSE(Tokenizer::FromJson("{\"a\xFF\": 1}", "bytes").ok());
}

// The ids of `text` with the bytes between { and } split; the braces are no part of it.
std::vector<int32_t> SplitIds(const Tokenizer& tokenizer, absl::string_view text) {
  std::string plain;
  ByteRanges split;
  size_t begin = 0;
  for (const char c : text) {
    if (c == '{') begin = plain.size();
    if (c == '}') AppendRange(begin, plain.size(), &split);
    if (c != '{' && c != '}') plain += c;
  }
  const auto ids = tokenizer.Encode(plain, /*add_special_tokens=*/false, split);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>());
}

std::vector<int32_t> Bytes(absl::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::vector<int32_t> Concat(const std::vector<std::vector<int32_t>>& parts) {
  std::vector<int32_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(TokenizerTest, SplitTextHasNoSpecialTokens) {
  nlohmann::json json = ByteLevelJson();
  json["added_tokens"] = {AddedTokenJson(256, "<|a|>"), AddedTokenJson(257, "<think>", false),
                          AddedTokenJson(258, "<a>"),   AddedTokenJson(259, "<a><b>"),
                          AddedTokenJson(260, "<b>"),   AddedTokenJson(261, "<a", false)};
  const auto tokenizer = MakeTokenizer(json);
  EXPECT_EQ(SplitIds(*tokenizer, "<|a|>x{<|a|><think>}"), Concat({{256}, Bytes("x<|a|>"), {257}}));
  EXPECT_EQ(SplitIds(*tokenizer, "{x}<|a|>{x}"), Concat({Bytes("x"), {256}, Bytes("x")}));
  for (const char* text : {"{<}|a|>", "<|{a}|>", "<|a|{>}", "{<|}a{|>}"}) {
    EXPECT_EQ(SplitIds(*tokenizer, text), Bytes("<|a|>")) << text;
  }
  // Split text takes no byte of a token behind it, and shorter tokens within it are still found.
  EXPECT_EQ(SplitIds(*tokenizer, "{<a>}<b>"), Concat({{261}, Bytes(">"), {260}}));
  EXPECT_EQ(SplitIds(*tokenizer, "<a>{<b>}"), Concat({{258}, Bytes("<b>")}));
  EXPECT_EQ(SplitIds(*tokenizer, "{<|a<}|a|>"), Bytes("<|a<|a|>"));
  EXPECT_EQ(SplitIds(*tokenizer, "{<|a}<|a|>"), Concat({Bytes("<|a"), {256}}));
}

TEST(TokenizerTest, SplitTextIsFollowedThroughNormalizers) {
  const auto with = [](nlohmann::json normalizers, const std::string& token) {
    nlohmann::json json = ByteLevelJson();
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    json["added_tokens"] = {AddedTokenJson(256, token)};
    json["added_tokens"][0]["normalized"] = true;
    return MakeTokenizer(json);
  };
  const nlohmann::json replace = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "___"}};
  const nlohmann::json shorten = {
      {"type", "Replace"}, {"pattern", {{"String", "xx"}}}, {"content", "!"}};
  const nlohmann::json prepend = {{"type", "Prepend"}, {"prepend", "_"}};
  const nlohmann::json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const nlohmann::json lower = {{"type", "Lowercase"}};
  const nlohmann::json nfc = {{"type", "NFC"}};

  const auto spaces = with({replace, prepend}, "<s>");
  EXPECT_EQ(SplitIds(*spaces, "a {b _<s>} _<s>{ _<s>}"),
            Concat({Bytes("_a___b____<s>___"), {256}, Bytes("____<s>")}));
  const auto upper = with({strip, lower, shorten}, "<|A|>");
  EXPECT_EQ(SplitIds(*upper, "  {xx<|a|>xx}<|a|>  "), Concat({Bytes("!<|a|>!"), {256}}));
  EXPECT_EQ(SplitIds(*upper, "{\u0130xx}<|A|>"), Concat({Bytes("i\u0307!"), {256}}));
  EXPECT_EQ(SplitIds(*upper, "xx<|A|>{xx<|A|>}"), Concat({Bytes("!"), {256}, Bytes("!<|a|>")}));
  const auto composed = with({nfc}, "<\u00e9>");
  EXPECT_EQ(SplitIds(*composed, "e\u0301{e\u0301<e\u0301>}<e\u0301><\u00e9>"),
            Concat({Bytes("\u00e9\u00e9<\u00e9>"), {256, 256}}));
  EXPECT_EQ(SplitIds(*composed, "<e{\u0301}>"), Bytes("<\u00e9>")) << "an accent of split text";
}

// Some files have special tokens in the model's tables, too, where merges or whole words make them.
TEST(TokenizerTest, SplitTextMakesNoSpecialTokenByMerging) {
  for (const bool ignore_merges : {false, true}) {
    nlohmann::json json = TokenizerJson({"<", "s", ">", "<s", "<s>", "<s>s"});
    json["added_tokens"] = {AddedTokenJson(4, "<s>")};
    json["model"]["ignore_merges"] = ignore_merges;
    json["model"]["merges"] = {"< s", "<s >", "<s> s"};
    const auto tokenizer = MakeTokenizer(json);
    EXPECT_EQ(SplitIds(*tokenizer, "<s>"), (std::vector<int32_t>{4}));
    EXPECT_EQ(SplitIds(*tokenizer, "{<s>}"), (std::vector<int32_t>{3, 2}));
    EXPECT_EQ(SplitIds(*tokenizer, "{<s>}<s>"), (std::vector<int32_t>{3, 2, 4}));
    EXPECT_EQ(SplitIds(*tokenizer, "{<s>}"), (std::vector<int32_t>{3, 2})) << "from the cache";
    EXPECT_EQ(SplitIds(*tokenizer, "{<}<s>"), (std::vector<int32_t>{0, 4}));
  }
}

}  // namespace
}  // namespace baton::tokenizer
