#include "common/tokenizer/pipeline_reader.h"

#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

// Visits `step`, or its members in order if it is a Sequence, which keeps them under `members_key`.
absl::Status ForEachStep(
    const JsonCursor& step, absl::string_view members_key,
    absl::FunctionRef<absl::Status(const JsonCursor&, absl::string_view)> read) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor type, step.Get("type"));
  BATON_ASSIGN_OR_RETURN(const std::string name, type.String());
  if (name != "Sequence") return read(step, name);
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type", members_key}));
  BATON_ASSIGN_OR_RETURN(const JsonCursor members, step.Get(members_key));
  return members.ForEachElement(
      [&](const JsonCursor& member) { return ForEachStep(member, members_key, read); });
}

absl::StatusOr<std::string> ReadString(const JsonCursor& step, absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor member, step.Get(key));
  return member.String();
}

// One character.
absl::StatusOr<std::string> ReadChar(const JsonCursor& step, absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor member, step.Get(key));
  BATON_ASSIGN_OR_RETURN(std::string text, member.String());
  if (text.empty() || text.size() != Utf8CharBytes(text[0])) {
    return member.Expected("one character");
  }
  return text;
}

absl::StatusOr<bool> ReadBool(const JsonCursor& step, absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor member, step.Get(key));
  return member.Bool();
}

absl::StatusOr<int64_t> ReadInteger(const JsonCursor& step, absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor member, step.Get(key));
  return member.Integer(kMaxId);
}

// {"String": "..."} or {"Regex": "..."}
absl::StatusOr<Matcher> ReadPattern(const JsonCursor& step) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor pattern, step.Get("pattern"));
  BATON_RETURN_IF_ERROR(pattern.AllowOnly({"String", "Regex"}));
  const bool is_regex = pattern.Find("Regex").has_value();
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         ReadString(pattern, is_regex ? "Regex" : "String"));
  absl::StatusOr<Matcher> matcher = is_regex ? Matcher::Regex(text) : Matcher::Literal(text);
  if (!matcher.ok()) return pattern.Error(matcher.status().message());
  return matcher;
}

absl::StatusOr<Replace> ReadReplace(const JsonCursor& step) {
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "pattern", "content"}));
  BATON_ASSIGN_OR_RETURN(Matcher pattern, ReadPattern(step));
  BATON_ASSIGN_OR_RETURN(std::string content, ReadString(step, "content"));
  return Replace{std::move(pattern), std::move(content)};
}

absl::StatusOr<Normalizer> ReadNormalizer(const JsonCursor& step, absl::string_view type) {
  if (type == "Replace") return ReadReplace(step);
  if (type == "Prepend") {
    BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "prepend"}));
    BATON_ASSIGN_OR_RETURN(std::string text, ReadString(step, "prepend"));
    return Prepend{std::move(text)};
  }
  if (type == "Strip") {
    BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "strip_left", "strip_right"}));
    BATON_ASSIGN_OR_RETURN(const bool left, ReadBool(step, "strip_left"));
    BATON_ASSIGN_OR_RETURN(const bool right, ReadBool(step, "strip_right"));
    return StripWhitespace{left, right};
  }
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type"}));
  if (type == "NFC") return UnicodeForm::kNfc;
  if (type == "NFD") return UnicodeForm::kNfd;
  if (type == "NFKC") return UnicodeForm::kNfkc;
  if (type == "NFKD") return UnicodeForm::kNfkd;
  return Lowercase{};
}

absl::Status AppendNormalizer(const JsonCursor& step, absl::string_view type, Pipeline* pipeline) {
  for (const absl::string_view known :
       {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip"}) {
    if (type != known) continue;
    BATON_ASSIGN_OR_RETURN(Normalizer normalizer, ReadNormalizer(step, type));
    pipeline->normalizers.push_back(std::move(normalizer));
    return absl::OkStatus();
  }
  return step.Get("type")->Expected(
      "a normalizer of NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, Sequence");
}

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonCursor& step) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor behavior, step.Get("behavior"));
  BATON_ASSIGN_OR_RETURN(const std::string name, behavior.String());
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return behavior.Expected("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

absl::StatusOr<PreTokenizer> ReadSplit(const JsonCursor& step) {
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "pattern", "behavior", "invert"}));
  BATON_ASSIGN_OR_RETURN(Matcher pattern, ReadPattern(step));
  BATON_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(step));
  BATON_ASSIGN_OR_RETURN(const bool invert, ReadBool(step, "invert"));
  return Split{std::move(pattern), behavior, invert};
}

absl::StatusOr<PreTokenizer> ReadByteLevelSplit(const JsonCursor& step) {
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  BATON_ASSIGN_OR_RETURN(const bool add_prefix_space, ReadBool(step, "add_prefix_space"));
  BATON_ASSIGN_OR_RETURN(const bool use_regex, step.BoolOr("use_regex", true));
  return ByteLevelSplit{add_prefix_space, use_regex, /*name_bytes=*/true};
}

// The old form has add_prefix_space, the new one prepend_scheme; where both stand they must agree.
absl::StatusOr<PrependScheme> ReadPrependScheme(const JsonCursor& step) {
  PrependScheme scheme = PrependScheme::kAlways;
  if (const std::optional<JsonCursor> declared = step.Find("prepend_scheme")) {
    BATON_ASSIGN_OR_RETURN(const std::string name, declared->String());
    if (name == "first") {
      scheme = PrependScheme::kFirst;
    } else if (name == "never") {
      scheme = PrependScheme::kNever;
    } else if (name != "always") {
      return declared->Expected("first, never or always");
    }
    BATON_ASSIGN_OR_RETURN(const bool add_prefix_space, step.BoolOr("add_prefix_space", true));
    if (!add_prefix_space && scheme != PrependScheme::kNever) {
      return declared->Expected("never, as add_prefix_space is false");
    }
    return scheme;
  }
  BATON_ASSIGN_OR_RETURN(const bool add_prefix_space, step.BoolOr("add_prefix_space", true));
  return add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
}

absl::StatusOr<MetaspaceSplit> ReadMetaspace(const JsonCursor& step) {
  BATON_RETURN_IF_ERROR(step.AllowOnly(
      {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"}));
  BATON_ASSIGN_OR_RETURN(std::string replacement, ReadChar(step, "replacement"));
  BATON_ASSIGN_OR_RETURN(const PrependScheme scheme, ReadPrependScheme(step));
  BATON_ASSIGN_OR_RETURN(const bool split, step.BoolOr("split", true));
  return MetaspaceSplit{std::move(replacement), scheme, split};
}

absl::StatusOr<PreTokenizer> ReadDigits(const JsonCursor& step) {
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "individual_digits"}));
  BATON_ASSIGN_OR_RETURN(const bool individual, ReadBool(step, "individual_digits"));
  return SplitAtClass{IsNumeric,
                      individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous};
}

absl::StatusOr<PreTokenizer> ReadPunctuation(const JsonCursor& step) {
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "behavior"}));
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (step.Find("behavior")) {
    BATON_ASSIGN_OR_RETURN(behavior, ReadBehavior(step));
  }
  return SplitAtClass{IsPunctuation, behavior};
}

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const JsonCursor& step, absl::string_view type) {
  if (type == "Split") return ReadSplit(step);
  if (type == "ByteLevel") return ReadByteLevelSplit(step);
  if (type == "Metaspace") return ReadMetaspace(step);
  if (type == "Digits") return ReadDigits(step);
  if (type == "Punctuation") return ReadPunctuation(step);
  if (type == "WhitespaceSplit" || type == "Whitespace") {
    BATON_RETURN_IF_ERROR(step.AllowOnly({"type"}));
    if (type == "Whitespace") return SplitWords{};
    return SplitAtClass{IsWhitespace, SplitBehavior::kRemoved};
  }
  return step.Get("type")->Expected(
      "a pre-tokenizer of ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, "
      "WhitespaceSplit, Sequence");
}

void FindByteLevelEnd(Pipeline* pipeline) {
  if (pipeline->pre_tokenizers.empty()) return;
  if (auto* last = std::get_if<ByteLevelSplit>(&pipeline->pre_tokenizers.back())) {
    last->name_bytes = false;
    pipeline->byte_level = true;
  }
}

// Appends the ids that `special_tokens` gives to the token that a template names.
absl::Status AppendSpecialToken(const JsonCursor& piece, const JsonCursor& special_tokens,
                                std::vector<int32_t>* ids) {
  BATON_ASSIGN_OR_RETURN(const std::string name, ReadString(piece, "id"));
  BATON_ASSIGN_OR_RETURN(const JsonCursor token, special_tokens.Get(name));
  BATON_ASSIGN_OR_RETURN(const JsonCursor token_ids, token.Get("ids"));
  return token_ids.ForEachElement([&](const JsonCursor& id) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const int64_t value, id.Integer(kMaxId));
    ids->push_back(static_cast<int32_t>(value));
    return absl::OkStatus();
  });
}

absl::StatusOr<Template> ReadTemplate(const JsonCursor& step) {
  BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "single", "pair", "special_tokens"}));
  BATON_ASSIGN_OR_RETURN(const JsonCursor single, step.Get("single"));
  BATON_ASSIGN_OR_RETURN(const JsonCursor special_tokens, step.Get("special_tokens"));
  Template result;
  bool text_seen = false;
  BATON_RETURN_IF_ERROR(single.ForEachElement([&](const JsonCursor& piece) -> absl::Status {
    BATON_RETURN_IF_ERROR(piece.AllowOnly({"SpecialToken", "Sequence"}));
    if (const std::optional<JsonCursor> token = piece.Find("SpecialToken")) {
      return AppendSpecialToken(*token, special_tokens,
                                text_seen ? &result.suffix : &result.prefix);
    }
    BATON_ASSIGN_OR_RETURN(const JsonCursor sequence, piece.Get("Sequence"));
    BATON_ASSIGN_OR_RETURN(const std::string name, ReadString(sequence, "id"));
    if (name != "A" || text_seen) return sequence.Error("expected the sequence A, once");
    text_seen = true;
    return absl::OkStatus();
  }));
  if (!text_seen) return single.Error("expected the sequence A in the template");
  return result;
}

absl::Status ApplyPostProcessor(const JsonCursor& step, absl::string_view type,
                                Pipeline* pipeline) {
  if (type == "ByteLevel") {  // trims offsets, which Baton has none of
    return step.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type != "TemplateProcessing") {
    return step.Get("type")->Expected(
        "a post-processor of TemplateProcessing, ByteLevel, Sequence");
  }
  BATON_ASSIGN_OR_RETURN(Template outer, ReadTemplate(step));
  Template& all = pipeline->special_tokens;
  outer.prefix.insert(outer.prefix.end(), all.prefix.begin(), all.prefix.end());
  all.prefix = std::move(outer.prefix);
  all.suffix.insert(all.suffix.end(), outer.suffix.begin(), outer.suffix.end());
  return absl::OkStatus();
}

absl::StatusOr<Decoder> ReadDecoder(const JsonCursor& step, absl::string_view type) {
  if (type == "Replace") return ReadReplace(step);
  if (type == "ByteLevel") {
    BATON_RETURN_IF_ERROR(
        step.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    return DecodeByteLevel{};
  }
  if (type == "Metaspace") {
    BATON_ASSIGN_OR_RETURN(MetaspaceSplit metaspace, ReadMetaspace(step));
    return DecodeMetaspace{std::move(metaspace.replacement),
                           metaspace.prepend_scheme != PrependScheme::kNever};
  }
  if (type == "Strip") {
    BATON_RETURN_IF_ERROR(step.AllowOnly({"type", "content", "start", "stop"}));
    BATON_ASSIGN_OR_RETURN(std::string content, ReadChar(step, "content"));
    BATON_ASSIGN_OR_RETURN(const int64_t start, ReadInteger(step, "start"));
    BATON_ASSIGN_OR_RETURN(const int64_t stop, ReadInteger(step, "stop"));
    return StripChars{std::move(content), static_cast<size_t>(start), static_cast<size_t>(stop)};
  }
  if (type == "ByteFallback" || type == "Fuse") {
    BATON_RETURN_IF_ERROR(step.AllowOnly({"type"}));
    if (type == "Fuse") return Fuse{};
    return DecodeByteFallback{};
  }
  return step.Get("type")->Expected(
      "a decoder of ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence");
}

// Once the tokens are one text, a step that needs whole tokens could only start at the end of the
// stream: text would come all at once.
absl::Status AppendDecoder(const JsonCursor& step, absl::string_view type, Pipeline* pipeline) {
  BATON_ASSIGN_OR_RETURN(Decoder decoder, ReadDecoder(step, type));
  const bool needs_tokens = type == "Replace" || type == "ByteLevel" || type == "ByteFallback";
  for (const Decoder& before : pipeline->decoders) {
    const bool fuses =
        std::holds_alternative<Fuse>(before) || std::holds_alternative<DecodeByteLevel>(before);
    if (fuses && needs_tokens) {
      return step.Error(absl::StrCat(type,
                                     " after Fuse or ByteLevel cannot be streamed; expected "
                                     "it before, or Strip, Metaspace or Fuse"));
    }
  }
  pipeline->decoders.push_back(std::move(decoder));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Pipeline> ReadPipeline(const JsonCursor& root) {
  Pipeline pipeline;
  if (const std::optional<JsonCursor> normalizer = root.Find("normalizer")) {
    BATON_RETURN_IF_ERROR(ForEachStep(*normalizer, "normalizers",
                                      [&](const JsonCursor& step, absl::string_view type) {
                                        return AppendNormalizer(step, type, &pipeline);
                                      }));
  }
  if (const std::optional<JsonCursor> pre_tokenizer = root.Find("pre_tokenizer")) {
    BATON_RETURN_IF_ERROR(
        ForEachStep(*pre_tokenizer, "pretokenizers",
                    [&](const JsonCursor& step, absl::string_view type) -> absl::Status {
                      BATON_ASSIGN_OR_RETURN(PreTokenizer read, ReadPreTokenizer(step, type));
                      pipeline.pre_tokenizers.push_back(std::move(read));
                      return absl::OkStatus();
                    }));
  }
  FindByteLevelEnd(&pipeline);
  if (const std::optional<JsonCursor> post_processor = root.Find("post_processor")) {
    BATON_RETURN_IF_ERROR(ForEachStep(*post_processor, "processors",
                                      [&](const JsonCursor& step, absl::string_view type) {
                                        return ApplyPostProcessor(step, type, &pipeline);
                                      }));
  }
  const std::optional<JsonCursor> decoder = root.Find("decoder");
  pipeline.decoder_absent = !decoder.has_value();
  if (decoder) {
    BATON_RETURN_IF_ERROR(
        ForEachStep(*decoder, "decoders", [&](const JsonCursor& step, absl::string_view type) {
          return AppendDecoder(step, type, &pipeline);
        }));
  }
  return pipeline;
}

}  // namespace baton::tokenizer
