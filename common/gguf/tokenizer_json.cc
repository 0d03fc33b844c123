#include "common/gguf/tokenizer_json.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/gguf/json_object.h"
#include "common/gguf/token_list.h"
#include "common/gguf/tokenizer_parts.h"
#include "common/json/json.h"

namespace baton::gguf {
namespace {

constexpr absl::string_view kBos = "tokenizer.ggml.bos_token_id";
constexpr absl::string_view kEos = "tokenizer.ggml.eos_token_id";

absl::StatusOr<TokenizerParts> PartsOf(const File& file) {
  constexpr absl::string_view kExpected =
      "\"gpt2\" (byte-level BPE), \"llama\" (SentencePiece BPE) or \"gemma4\"";
  BATON_ASSIGN_OR_RETURN(const auto model, file.Text(kTokenizerModelKey));
  if (!model) return file.Missing(kTokenizerModelKey, kExpected);
  if (*model == kByteLevelModel) return ByteLevelParts(file);
  if (*model == kSentencePieceModel) return SentencePieceParts(file);
  if (*model == kGemma4Model) return Gemma4Parts(file);
  return file.Unsupported(kTokenizerModelKey,
                          absl::StrCat("found ", json::Quoted(*model), ", expected ", kExpected));
}

// A template with BOS before the text and EOS behind it, as far as the file asks for them.
absl::Status AddPostProcessor(const File& file, const TokenizerParts& parts, JsonObject* document) {
  std::vector<std::string> pieces = {R"({"Sequence": {"id": "A", "type_id": 0}})"};
  JsonObject tokens;
  const auto add = [&](absl::string_view flag, absl::string_view key, bool by_default, bool forced,
                       size_t place) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const auto asked, file.Bool(flag));
    if (!forced && !asked.value_or(by_default)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const auto token, TokenOf(file, key));
    if (!token) return file.Missing(key, absl::StrCat("a token, which ", flag, " adds"));
    JsonObject id, piece;
    id.AddText("id", key);
    id.AddInteger("type_id", 0);
    piece.AddJson("SpecialToken", id.Text());
    pieces.insert(pieces.begin() + static_cast<int64_t>(place), piece.Text());
    tokens.AddJson(key, absl::StrCat("{\"ids\": [", token->first, "]}"));
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(
      add("tokenizer.ggml.add_bos_token", kBos, parts.add_bos, parts.forces_bos, 0));
  BATON_RETURN_IF_ERROR(add("tokenizer.ggml.add_eos_token", kEos, false, false, pieces.size()));
  if (pieces.size() == 1) return absl::OkStatus();
  JsonObject processor;
  processor.AddText("type", "TemplateProcessing");
  processor.AddJson("single", absl::StrCat("[", absl::StrJoin(pieces, ", "), "]"));
  processor.AddJson("special_tokens", tokens.Text());
  document->AddJson("post_processor", processor.Text());
  return absl::OkStatus();
}

std::string NamedTemplate(absl::string_view name, absl::string_view source) {
  JsonObject named;
  named.AddText("name", name);
  named.AddText("template", source);
  return named.Text();
}

}  // namespace

absl::StatusOr<std::string> TokenizerJson(const File& file) {
  BATON_ASSIGN_OR_RETURN(const TokenizerParts parts, PartsOf(file));
  JsonObject document;
  document.AddText("version", "1.0");
  if (!parts.normalizer.empty()) document.AddJson("normalizer", parts.normalizer);
  if (!parts.pre_tokenizer.empty()) document.AddJson("pre_tokenizer", parts.pre_tokenizer);
  BATON_RETURN_IF_ERROR(AddPostProcessor(file, parts, &document));
  document.AddJson("decoder", parts.decoder);
  document.AddJson("added_tokens", parts.added_tokens);
  document.AddJson("model", parts.model);
  return document.Text();
}

absl::StatusOr<std::string> TokenizerConfigJson(const File& file) {
  JsonObject config;
  for (const auto& [key, field] : {std::pair(kBos, "bos_token"),
                                   {kEos, "eos_token"},
                                   {"tokenizer.ggml.padding_token_id", "pad_token"},
                                   {"tokenizer.ggml.unknown_token_id", "unk_token"}}) {
    BATON_ASSIGN_OR_RETURN(const auto token, TokenOf(file, key));
    if (token) config.AddText(field, token->second);
  }
  constexpr absl::string_view kTemplate = "tokenizer.chat_template";
  BATON_ASSIGN_OR_RETURN(const auto source, file.Text(kTemplate));
  if (!source) return config.Text();
  BATON_ASSIGN_OR_RETURN(const auto tools, file.Text(absl::StrCat(kTemplate, ".tool_use")));
  if (tools) {
    config.AddJson("chat_template", absl::StrCat("[", NamedTemplate("default", *source), ", ",
                                                 NamedTemplate("tool_use", *tools), "]"));
  } else {
    config.AddText("chat_template", *source);
  }
  return config.Text();
}

absl::StatusOr<std::vector<int64_t>> EndTokenIds(const File& file) {
  constexpr absl::string_view kEndTexts[] = {
      "<|eot_id|>",    "<|eom_id|>",  // Llama 3
      "<|im_end|>",                   // ChatML
      "<end_of_turn>", "<turn|>",     // Gemma
      "<|end|>",                      // Phi
      "[|endofturn|]",                // EXAONE
      "<seed:eos>",    "</s>",       "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
  };
  std::set<int64_t> ids;
  for (const absl::string_view key : {kEos, absl::string_view("tokenizer.ggml.eot_token_id"),
                                      absl::string_view("tokenizer.ggml.eom_token_id")}) {
    BATON_ASSIGN_OR_RETURN(const auto id, file.Integer(key));
    if (id) ids.insert(*id);
  }
  BATON_ASSIGN_OR_RETURN(const auto model, file.Text(kTokenizerModelKey));
  if (model == kByteLevelModel || model == kSentencePieceModel || model == kGemma4Model) {
    BATON_RETURN_IF_ERROR(ForEachToken(file, [&](const Token& token) {
      const bool is_end = std::count(std::begin(kEndTexts), std::end(kEndTexts), token.text) > 0;
      // Gemma's "</s>" is user-defined: it is HTML there.
      const bool ends_call = model == kGemma4Model && token.text == "<|tool_response>";
      if ((token.type == kControlToken && is_end) || ends_call) {
        ids.insert(static_cast<int64_t>(token.id));
      }
      return absl::OkStatus();
    }));
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

}  // namespace baton::gguf
