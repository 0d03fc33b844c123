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

constexpr absl::string_view kMerges = "tokenizer.ggml.merges";

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
constexpr char kGpt4o[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kSeedCoder[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1})"
                              R"(| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<Pipeline>& Pipelines() {
  static const auto& pipelines = *new std::vector<Pipeline>{
      {.names = {"llama-bpe", "llama3", "llama-v3"},
       .expression = kLlama3,
       .ignore_merges = true,
       .add_bos = true},
      // SmolLM3, which has Llama 3's vocabulary, and no BOS.
      {.names = {"smaug-bpe"}, .expression = kLlama3, .ignore_merges = true},
      // OLMo 2 and 3, Granite 4, Phi-4.
      {.names = {"dbrx"}, .expression = kLlama3},
      // Phi-4-mini.
      {.names = {"gpt-4o"}, .expression = kGpt4o},
      // Seed-OSS.
      {.names = {"seed-coder"}, .expression = kSeedCoder},
      {.names = {"qwen2", "deepseek-r1-qwen"},
       .normalizer = R"({"type": "NFC"})",
       .expression = kQwen2},
      {.names = {"tekken"}, .expression = kTekken, .ignore_merges = true, .add_bos = true},
      // SmolLM2; Granite 3.
      {.names = {"smollm", "refact"},
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

absl::StatusOr<std::string> MergesJson(const File& file) {
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
  return absl::StrCat("[", pairs, "]");
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
  BATON_ASSIGN_OR_RETURN(const std::string merges, MergesJson(file));
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
