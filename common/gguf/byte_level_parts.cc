#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json_string.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/gguf/json_object.h"
#include "common/gguf/token_list.h"
#include "common/gguf/tokenizer_parts.h"
#include "common/json/json.h"

namespace baton::gguf {
namespace {

constexpr char kByteLevelDecoder[] =
    R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";

// What tokenizer.ggml.pre stands for: the pipelines of the families' published tokenizer.json.
struct Pipeline {
  std::vector<absl::string_view> names;
  absl::string_view normalizer = "";
  // Before the splitting of ByteLevel: a Split by each expression in turn, then Digits.
  std::vector<absl::string_view> expressions = {};
  bool splits_digits = false;
  bool byte_level_regex = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

constexpr char kLlama3[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                          R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen35[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
                           R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kGpt4o[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kSeedCoder[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1})"
                              R"(| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

// DeepSeek's, in turn: line ends; letters with a case, those of Unicode 12; punctuation; spaces at
// an end; Chinese, Japanese and Korean, with the scripts whose code points are between them.
constexpr char kLineEnds[] = R"([\r\n])";
constexpr char kCasedLetters[] =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943}]+)";
constexpr char kPunctuation[] =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr char kSpacesAtEnd[] = R"(\s+$)";
constexpr char kEastAsian[] = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";

const std::vector<Pipeline>& Pipelines() {
  static const auto& pipelines = *new std::vector<Pipeline>{
      {.names = {"llama-bpe", "llama3", "llama-v3", "lfm2"},
       .expressions = {kLlama3},
       .ignore_merges = true,
       .add_bos = true},
      // SmolLM3, which has Llama 3's vocabulary, and no BOS.
      {.names = {"smaug-bpe"}, .expressions = {kLlama3}, .ignore_merges = true},
      // OLMo 2 and 3, Granite 4, Phi-4.
      {.names = {"dbrx"}, .expressions = {kLlama3}},
      // Phi-4-mini.
      {.names = {"gpt-4o"}, .expressions = {kGpt4o}},
      // Seed-OSS.
      {.names = {"seed-coder"}, .expressions = {kSeedCoder}},
      {.names = {"qwen2", "deepseek-r1-qwen"},
       .normalizer = R"({"type": "NFC"})",
       .expressions = {kQwen2}},
      {.names = {"qwen35"}, .normalizer = R"({"type": "NFC"})", .expressions = {kQwen35}},
      {.names = {"tekken"}, .expressions = {kTekken}, .ignore_merges = true, .add_bos = true},
      // SmolLM2; Granite 3.
      {.names = {"smollm", "refact"}, .splits_digits = true, .byte_level_regex = true},
      // DeepSeek-V2. (llama.cpp keeps digits together.)
      {.names = {"deepseek-llm"},
       .expressions = {kLineEnds, kCasedLetters, kPunctuation, kSpacesAtEnd, kEastAsian},
       .splits_digits = true},
      // GLM-4.
      {.names = {"chatglm-bpe", "glm4"}, .expressions = {kLlama3}},
      {.names = {"gpt-2"}, .byte_level_regex = true},
  };
  return pipelines;
}

std::string PreTokenizerJson(const Pipeline& pipeline) {
  std::string steps;
  for (const absl::string_view expression : pipeline.expressions) {
    JsonObject pattern, split;
    pattern.AddText("Regex", expression);
    split.AddText("type", "Split");
    split.AddJson("pattern", pattern.Text());
    split.AddText("behavior", "Isolated");
    split.AddBool("invert", false);
    absl::StrAppend(&steps, split.Text(), ", ");
  }
  if (pipeline.splits_digits) {
    JsonObject digits;
    digits.AddText("type", "Digits");
    digits.AddBool("individual_digits", true);
    absl::StrAppend(&steps, digits.Text(), ", ");
  }
  JsonObject bytes, sequence;
  bytes.AddText("type", "ByteLevel");
  bytes.AddBool("add_prefix_space", false);
  bytes.AddBool("trim_offsets", true);
  bytes.AddBool("use_regex", pipeline.byte_level_regex);
  sequence.AddText("type", "Sequence");
  sequence.AddJson("pretokenizers", absl::StrCat("[", steps, bytes.Text(), "]"));
  return sequence.Text();
}

absl::StatusOr<const Pipeline*> FindPipeline(const File& file) {
  constexpr absl::string_view kPre = "tokenizer.ggml.pre";
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

}  // namespace

absl::StatusOr<TokenizerParts> ByteLevelParts(const File& file) {
  BATON_ASSIGN_OR_RETURN(const Pipeline* pipeline, FindPipeline(file));
  std::string vocab, added;
  BATON_RETURN_IF_ERROR(ForEachToken(file, [&](const Token& token) {
    if (token.type == kNormalToken) {
      if (!vocab.empty()) vocab += ",";
      AppendJsonString(token.text, &vocab);
      absl::StrAppend(&vocab, ":", token.id);
    } else if (token.type != kUnusedToken) {
      // Control and user-defined tokens are recognised in raw text, as both are by llama.cpp.
      AppendAddedToken(token, token.text, /*rstrip=*/false, &added);
    }
    return absl::OkStatus();
  }));
  BATON_ASSIGN_OR_RETURN(const std::string merges, ListedMergesJson(file));
  JsonObject model;
  model.AddText("type", "BPE");
  model.AddBool("ignore_merges", pipeline->ignore_merges);
  model.AddJson("vocab", absl::StrCat("{", vocab, "}"));
  model.AddJson("merges", merges);
  TokenizerParts parts;
  parts.normalizer = std::string(pipeline->normalizer);
  parts.pre_tokenizer = PreTokenizerJson(*pipeline);
  parts.decoder = kByteLevelDecoder;
  parts.added_tokens = absl::StrCat("[", added, "]");
  parts.model = model.Text();
  parts.add_bos = pipeline->add_bos;
  return parts;
}

}  // namespace baton::gguf
