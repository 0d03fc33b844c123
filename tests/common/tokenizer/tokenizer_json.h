// Small tokenizer.json files made in code.
#ifndef BATON_TESTS_COMMON_TOKENIZER_TOKENIZER_JSON_H_
#define BATON_TESTS_COMMON_TOKENIZER_TOKENIZER_JSON_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::tokenizer {

// A tokenizer.json with a BPE model of these tokens, ids from 0, no merges.
inline nlohmann::json TokenizerJson(const std::vector<std::string>& tokens) {
  nlohmann::json vocab = nlohmann::json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", nlohmann::json::array()}}}};
}

inline nlohmann::json AddedTokenJson(int id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// The 256 characters by which GPT-2 writes bytes, ids 0 to 255, with ByteLevel as pre-tokenizer and
// decoder.
inline nlohmann::json ByteLevelJson() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(ByteName(static_cast<unsigned char>(byte)));
  }
  nlohmann::json json = TokenizerJson(tokens);
  json["pre_tokenizer"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  json["decoder"] = json["pre_tokenizer"];
  return json;
}

// Llama 2's decoder: bytes 0..255, then words.
inline nlohmann::json FallbackJson() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    snprintf(name, sizeof(name), "<0x%02X>", byte);
    tokens.emplace_back(name);
  }
  tokens.insert(tokens.end(), {"▁Hello", "▁world", "▁", "!", "é"});
  nlohmann::json json = TokenizerJson(tokens);
  json["added_tokens"] = {AddedTokenJson(261, "<s>")};
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return json;
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(const nlohmann::json& json) {
  auto tokenizer = Tokenizer::FromJson(json.dump(), "test.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

}  // namespace baton::tokenizer

#endif  // BATON_TESTS_COMMON_TOKENIZER_TOKENIZER_JSON_H_
