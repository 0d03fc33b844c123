#include "common/gguf/tokenizer_json.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json_string.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/gguf/json_object.h"
#include "common/json/json.h"

namespace baton::gguf {
namespace {

constexpr absl::string_view kByteLevel = "gpt2";
constexpr absl::string_view kTokens = "tokenizer.ggml.tokens";
constexpr absl::string_view kTokenTypes = "tokenizer.ggml.token_type";
constexpr absl::string_view kMerges = "tokenizer.ggml.merges";
constexpr absl::string_view kBos = "tokenizer.ggml.bos_token_id";
constexpr absl::string_view kEos = "tokenizer.ggml.eos_token_id";

// The format's types of tokens. 2, unknown, is special like control; 6, a byte, is SentencePiece's.
constexpr int64_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

constexpr uint64_t kMaxListBytes = uint64_t{64} << 20;  // known vocabularies have below 8 MiB

constexpr char kByteLevelDecoder[] =
    R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";

// What tokenizer.ggml.pre stands for: the pipelines of the families' published tokenizer.json.
struct Pipeline {
  std::vector<absl::string_view> names;
  absl::string_view normalizer = "";
  // Before the splitting of ByteLevel: an expression of Split, or a whole step, or nothing.
  absl::string_view expression = "";
  absl::string_view step = "";
  bool byte_level_regex = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

constexpr char kLlama3[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                          R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<Pipeline>& Pipelines() {
  static const auto& pipelines = *new std::vector<Pipeline>{
      {.names = {"llama-bpe", "llama3", "llama-v3"},
       .expression = kLlama3,
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"qwen2", "deepseek-r1-qwen"},
       .normalizer = R"({"type": "NFC"})",
       .expression = kQwen2},
      {.names = {"tekken"}, .expression = kTekken, .ignore_merges = true, .add_bos = true},
      {.names = {"smollm"},
       .step = R"({"type": "Digits", "individual_digits": true})",
       .byte_level_regex = true},
      {.names = {"gpt-2"}, .byte_level_regex = true},
  };
  return pipelines;
}

std::string PreTokenizerJson(const Pipeline& pipeline) {
  std::string steps(pipeline.step);
  if (!pipeline.expression.empty()) {
    JsonObject pattern, split;
    pattern.AddText("Regex", pipeline.expression);
    split.AddText("type", "Split");
    split.AddJson("pattern", pattern.Text());
    split.AddText("behavior", "Isolated");
    split.AddBool("invert", false);
    steps = split.Text();
  }
  JsonObject bytes, sequence;
  bytes.AddText("type", "ByteLevel");
  bytes.AddBool("add_prefix_space", false);
  bytes.AddBool("trim_offsets", true);
  bytes.AddBool("use_regex", pipeline.byte_level_regex);
  if (!steps.empty()) steps += ", ";
  sequence.AddText("type", "Sequence");
  sequence.AddJson("pretokenizers", absl::StrCat("[", steps, bytes.Text(), "]"));
  return sequence.Text();
}

absl::StatusOr<const Pipeline*> FindPipeline(const File& file) {
  constexpr absl::string_view kPre = "tokenizer.ggml.pre";
  BATON_ASSIGN_OR_RETURN(const auto model, file.Text(kTokenizerModelKey));
  if (!model) return file.Missing(kTokenizerModelKey, "\"gpt2\"");
  if (*model != kByteLevel) {
    return file.Unsupported(
        kTokenizerModelKey,
        absl::StrCat("found ", json::Quoted(*model), ", expected \"gpt2\" (byte-level BPE)"));
  }
  BATON_ASSIGN_OR_RETURN(const auto pre, file.Text(kPre));
  std::vector<absl::string_view> known;
  for (const Pipeline& pipeline : Pipelines()) {
    for (const absl::string_view name : pipeline.names) {
      if (pre == name) return &pipeline;
      known.push_back(name);
    }
  }
  return file.Unsupported(kPre, absl::StrCat("found ", pre ? json::Quoted(*pre) : "nothing",
                                             ", expected one of ", absl::StrJoin(known, ", ")));
}

std::string Element(absl::string_view key, uint64_t index) {
  return absl::StrCat(key, "[", index, "]");
}

absl::StatusOr<Texts> RequiredTexts(const File& file, absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const auto list, file.TextList(key));
  if (!list) return file.Missing(key, "a list of texts");
  if (list->size_bytes() > kMaxListBytes) {
    return file.Invalid(key, absl::StrCat("found ", list->size_bytes(), " bytes, expected at most ",
                                          kMaxListBytes));
  }
  return *list;
}

// Visits each token that is one: id, text and type.
absl::Status ForEachToken(
    const File& file, absl::FunctionRef<absl::Status(uint64_t, absl::string_view, int64_t)> visit) {
  BATON_ASSIGN_OR_RETURN(const Texts tokens, RequiredTexts(file, kTokens));
  BATON_ASSIGN_OR_RETURN(const auto types, file.IntegerList(kTokenTypes));
  if (!types || types->size() != tokens.size()) {
    return file.Invalid(
        kTokenTypes, absl::StrCat("found ", types ? types->size() : 0,
                                  " types, expected one for each of ", tokens.size(), " tokens"));
  }
  return tokens.ForEach([&](uint64_t id, absl::string_view text) -> absl::Status {
    const int64_t type = types->At(id);
    if (type == kUnused || text.empty()) return absl::OkStatus();
    if (type < kNormal || type > kUserDefined) {
      return file.Unsupported(Element(kTokenTypes, id), absl::StrCat("found ", type, ", expected ",
                                                                     kNormal, " to ", kUnused));
    }
    if (!IsUtf8(text)) {
      return file.Invalid(Element(kTokens, id), "found other bytes than UTF-8, expected a text");
    }
    return visit(id, text, type);
  });
}

// The texts of special tokens, by id; and that of a key's token.
absl::StatusOr<std::optional<std::pair<int64_t, std::string>>> TokenOf(const File& file,
                                                                       absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const auto id, file.Integer(key));
  if (!id) return std::nullopt;
  std::string found;
  BATON_RETURN_IF_ERROR(ForEachToken(file, [&](uint64_t each, absl::string_view text, int64_t) {
    if (static_cast<int64_t>(each) == *id) found = std::string(text);
    return absl::OkStatus();
  }));
  if (found.empty()) {
    return file.Invalid(key, absl::StrCat("found ", *id, ", expected the id of a token"));
  }
  return std::make_pair(*id, std::move(found));
}

// Control and user-defined tokens are recognised in raw text, as both are by llama.cpp.
std::string AddedToken(uint64_t id, absl::string_view text, int64_t type) {
  JsonObject token;
  token.AddInteger("id", static_cast<int64_t>(id));
  token.AddText("content", text);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
    token.AddBool(flag, false);
  }
  token.AddBool("special", type != kUserDefined);
  return token.Text();
}

// The model and the added tokens.
absl::Status AddTokens(const File& file, const Pipeline& pipeline, JsonObject* document) {
  std::string vocab, added;
  BATON_RETURN_IF_ERROR(
      ForEachToken(file, [&](uint64_t id, absl::string_view text, int64_t type) -> absl::Status {
        if (type == kNormal) {
          if (!vocab.empty()) vocab += ",";
          AppendJsonString(text, &vocab);
          absl::StrAppend(&vocab, ":", id);
        } else {
          absl::StrAppend(&added, added.empty() ? "" : ",", AddedToken(id, text, type));
        }
        return absl::OkStatus();
      }));
  BATON_ASSIGN_OR_RETURN(const Texts merges, RequiredTexts(file, kMerges));
  std::string pairs;
  BATON_RETURN_IF_ERROR(merges.ForEach([&](uint64_t i, absl::string_view text) -> absl::Status {
    if (!IsUtf8(text)) {
      return file.Invalid(Element(kMerges, i), "found other bytes than UTF-8, expected a text");
    }
    if (!pairs.empty()) pairs += ",";
    AppendJsonString(text, &pairs);
    return absl::OkStatus();
  }));
  JsonObject model;
  model.AddText("type", "BPE");
  model.AddBool("ignore_merges", pipeline.ignore_merges);
  model.AddJson("vocab", absl::StrCat("{", vocab, "}"));
  model.AddJson("merges", absl::StrCat("[", pairs, "]"));
  document->AddJson("added_tokens", absl::StrCat("[", added, "]"));
  document->AddJson("model", model.Text());
  return absl::OkStatus();
}

// A template with BOS before the text and EOS behind it, as far as the file asks for them.
absl::Status AddPostProcessor(const File& file, const Pipeline& pipeline, JsonObject* document) {
  std::vector<std::string> pieces = {R"({"Sequence": {"id": "A", "type_id": 0}})"};
  JsonObject tokens;
  const auto add = [&](absl::string_view flag, absl::string_view key, bool by_default,
                       size_t place) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const auto asked, file.Bool(flag));
    if (!asked.value_or(by_default)) return absl::OkStatus();
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
  BATON_RETURN_IF_ERROR(add("tokenizer.ggml.add_bos_token", kBos, pipeline.add_bos, 0));
  BATON_RETURN_IF_ERROR(add("tokenizer.ggml.add_eos_token", kEos, false, pieces.size()));
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
  BATON_ASSIGN_OR_RETURN(const Pipeline* pipeline, FindPipeline(file));
  JsonObject document;
  document.AddText("version", "1.0");
  if (!pipeline->normalizer.empty()) document.AddJson("normalizer", pipeline->normalizer);
  document.AddJson("pre_tokenizer", PreTokenizerJson(*pipeline));
  BATON_RETURN_IF_ERROR(AddPostProcessor(file, *pipeline, &document));
  document.AddJson("decoder", kByteLevelDecoder);
  BATON_RETURN_IF_ERROR(AddTokens(file, *pipeline, &document));
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
      "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
  };
  std::set<int64_t> ids;
  for (const absl::string_view key : {kEos, absl::string_view("tokenizer.ggml.eot_token_id"),
                                      absl::string_view("tokenizer.ggml.eom_token_id")}) {
    BATON_ASSIGN_OR_RETURN(const auto id, file.Integer(key));
    if (id) ids.insert(*id);
  }
  BATON_ASSIGN_OR_RETURN(const auto model, file.Text(kTokenizerModelKey));
  if (model != kByteLevel) return std::vector<int64_t>(ids.begin(), ids.end());
  BATON_RETURN_IF_ERROR(ForEachToken(file, [&](uint64_t id, absl::string_view text, int64_t type) {
    if (type == kControl && std::count(std::begin(kEndTexts), std::end(kEndTexts), text) > 0) {
      ids.insert(static_cast<int64_t>(id));
    }
    return absl::OkStatus();
  }));
  return std::vector<int64_t>(ids.begin(), ids.end());
}

}  // namespace baton::gguf
