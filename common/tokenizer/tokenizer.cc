#include "common/tokenizer/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/gguf/documents.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/json_cursor.h"
#include "common/tokenizer/model_reader.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pipeline_reader.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/tokenizer_parts.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

absl::Status CheckVersion(const JsonCursor& root) {
  const std::optional<JsonCursor> version = root.Find("version");
  if (!version) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::string text, version->String());
  if (text != "1.0") return version->Expected("\"1.0\"");
  return absl::OkStatus();
}

absl::Status NormalizePatterns(const std::vector<Normalizer>& normalizers,
                               std::vector<AddedToken>* tokens) {
  for (AddedToken& token : *tokens) {
    if (!token.normalized) continue;
    Scratch scratch;
    Piece piece{token.content, /*at_start=*/true};
    BATON_RETURN_IF_ERROR(Normalize(normalizers, &piece, &scratch, /*split=*/nullptr));
    token.pattern = std::string(piece.text);
  }
  return absl::OkStatus();
}

absl::Status CheckPattern(const AddedToken& token, const JsonCursor& root) {
  if (!token.pattern.empty() && token.pattern.size() <= AddedTokenFinder::kMaxPatternBytes) {
    return absl::OkStatus();
  }
  return root.Error(absl::StrCat("added_tokens: the token with id ", token.id, " has ",
                                 token.pattern.size(), " bytes once normalised, expected 1 to ",
                                 AddedTokenFinder::kMaxPatternBytes));
}

absl::Status CheckTemplate(const std::vector<int32_t>& ids, const JsonCursor& root,
                           const Tokenizer& tokenizer) {
  for (const int32_t id : ids) {
    if (tokenizer.IdToToken(id)) continue;
    return root.Error(absl::StrCat("post_processor: expected the id of a token, found ", id));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return MakeError(absl::StatusCode::kNotFound, "NO_TOKENIZER",
                     absl::StrCat(path,
                                  ": cannot be opened; expected a Hugging Face "
                                  "tokenizer.json in the model's folder"));
  }
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad() || content.fail()) {
    return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  }
  return content.str();
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::string path = gguf::DocumentName(model_dir, "tokenizer.json");
  if (!gguf::IsGguf(model_dir)) {
    BATON_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
    return FromJson(json, path);
  }
  const auto json = gguf::ReadDocument(model_dir, "tokenizer.json");
  if (!json.ok()) {
    const bool missing = absl::IsNotFound(json.status());
    return WithDetails(json.status(), missing ? "NO_TOKENIZER" : "BAD_TOKENIZER", /*field=*/"",
                       /*retry_after=*/std::nullopt);
  }
  if (!*json) {
    return MakeError(absl::StatusCode::kNotFound, "NO_TOKENIZER",
                     absl::StrCat(model_dir, ": found no tokenizer, expected one in the file"));
  }
  return FromJson(**json, path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(absl::string_view json,
                                                               absl::string_view origin) {
  BATON_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(json, origin));
  const JsonCursor root = document.root();
  BATON_RETURN_IF_ERROR(
      root.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  BATON_RETURN_IF_ERROR(CheckVersion(root));
  BATON_ASSIGN_OR_RETURN(Pipeline pipeline, ReadPipeline(root));
  BATON_ASSIGN_OR_RETURN(BpeSpec model, ReadModel(root));
  BATON_ASSIGN_OR_RETURN(std::vector<AddedToken> added, ReadAddedTokens(root, model.vocabulary));
  BATON_RETURN_IF_ERROR(NormalizePatterns(pipeline.normalizers, &added));
  for (const AddedToken& token : added) {
    if (token.special) model.special.push_back(token.id);
  }

  auto parts = std::make_unique<Parts>(std::move(pipeline), std::move(model), std::move(added));
  parts->fingerprint = XXH3_64bits(json.data(), json.size());
  parts->vocab_size = static_cast<int>(parts->bpe.vocabulary().id_limit());
  for (const AddedToken& token : parts->added_tokens) {
    BATON_RETURN_IF_ERROR(CheckPattern(token, root));
    AddedTokenFinder& finder = token.normalized ? parts->normalized_finder : parts->raw_finder;
    if (!finder.Add(&token)) {
      return root.Error(absl::StrCat("added_tokens: the token with id ", token.id,
                                     " is normalised to the same text as another"));
    }
    parts->added_by_id.emplace(token.id, &token);
    parts->added_by_content.emplace(token.content, &token);
    if (token.special) parts->special_contents.insert(token.content);
    if (token.special && token.normalized) parts->has_normalized_special = true;
    parts->vocab_size = std::max(parts->vocab_size, token.id + 1);
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(parts)));
  const Template& enclosing = tokenizer->parts_->pipeline.special_tokens;
  BATON_RETURN_IF_ERROR(CheckTemplate(enclosing.prefix, root, *tokenizer));
  BATON_RETURN_IF_ERROR(CheckTemplate(enclosing.suffix, root, *tokenizer));
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text,
                                                       bool add_special_tokens,
                                                       absl::Span<const ByteRange> split) const {
  BATON_ASSIGN_OR_RETURN(Encoded encoded,
                         EncodeOnward(text, add_special_tokens, split, Encoded(), /*common=*/0));
  return std::move(encoded.ids);
}

absl::StatusOr<Tokenizer::Encoded> Tokenizer::EncodeOnward(absl::string_view text,
                                                           bool add_special_tokens,
                                                           absl::Span<const ByteRange> split,
                                                           const Encoded& earlier,
                                                           size_t common) const {
  if (text.size() > kMaxTextBytes) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "TEXT_TOO_LONG",
        absl::StrCat("expected a text of at most ", kMaxTextBytes, " bytes, found ", text.size()));
  }
  Encoded encoded;
  size_t begin = 0;
  const Template& enclosing = parts_->pipeline.special_tokens;
  if (const Encoded::Cut* cut = LastDecidedCut(earlier, common); cut != nullptr) {
    begin = encoded.known_bytes = cut->byte;
    encoded.cuts.assign(earlier.cuts.data(), cut);
    // This is a guess for the rest: most tokens stand for two bytes or more.
    encoded.ids.reserve(cut->token + (text.size() - begin) / 2);
    encoded.ids.assign(earlier.ids.begin(),
                       earlier.ids.begin() + static_cast<std::ptrdiff_t>(cut->token));
  } else if (add_special_tokens) {
    encoded.ids = enclosing.prefix;
  }
  if (const std::optional<size_t> offset = FindInvalidUtf8(text.substr(begin))) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_UTF8",
                     absl::StrCat("expected a text in UTF-8, found another byte sequence at byte ",
                                  begin + *offset, " of ", text.size()));
  }
  BATON_RETURN_IF_ERROR(EncodeText(text, begin, split, &encoded));
  if (add_special_tokens) {
    encoded.ids.insert(encoded.ids.end(), enclosing.suffix.begin(), enclosing.suffix.end());
  }
  return encoded;
}

const Tokenizer::Encoded::Cut* Tokenizer::LastDecidedCut(const Encoded& earlier,
                                                         size_t common) const {
  const auto undecided =
      std::partition_point(earlier.cuts.begin(), earlier.cuts.end(),
                           [&](const Encoded::Cut& cut) { return cut.decided <= common; });
  return undecided == earlier.cuts.begin() ? nullptr : &*std::prev(undecided);
}

absl::Status Tokenizer::EncodeText(absl::string_view text, size_t begin,
                                   absl::Span<const ByteRange> split, Encoded* encoded) const {
  std::vector<int32_t>* const ids = &encoded->ids;
  std::vector<Piece> words;
  const auto encode_words = [&](Piece piece) -> absl::Status {
    Scratch scratch;
    BATON_RETURN_IF_ERROR(PreTokenize(parts_->pipeline.pre_tokenizers, piece, &scratch, &words));
    for (const Piece& word : words) {
      parts_->bpe.Encode(word.text, /*may_be_special=*/split.empty(), ids);
    }
    return absl::OkStatus();
  };
  const absl::string_view rest = text.substr(begin);
  ByteRanges split_of_rest;
  AppendRangesOfPart(split, begin, text.size(), 0, &split_of_rest);
  size_t covered = 0;
  return parts_->raw_finder.ForEachPart(
      rest, split_of_rest, [&](const AddedTokenFinder::Part& raw) -> absl::Status {
        if (raw.token != nullptr) {
          // A token that takes white space around it, or stands in some that another one takes, is
          // not decided by its own bytes.
          if (!raw.token->lstrip && raw.begin >= covered) {
            encoded->cuts.push_back({begin + raw.begin, ids->size(), begin + raw.read});
          }
          covered = raw.end;
          ids->push_back(raw.token->id);
          return absl::OkStatus();
        }
        Scratch scratch;
        const bool at_start = begin + raw.begin == 0;
        Piece piece{rest.substr(raw.begin, raw.end - raw.begin), at_start};
        ByteRanges split_of_piece;
        if (parts_->has_normalized_special) {
          AppendRangesOfPart(split_of_rest, raw.begin, raw.end, 0, &split_of_piece);
        }
        BATON_RETURN_IF_ERROR(
            Normalize(parts_->pipeline.normalizers, &piece, &scratch, &split_of_piece));
        return parts_->normalized_finder.ForEachPart(
            piece.text, split_of_piece, [&](const AddedTokenFinder::Part& part) {
              if (part.token == nullptr) {
                return encode_words({piece.text.substr(part.begin, part.end - part.begin),
                                     piece.at_start && part.begin == 0});
              }
              ids->push_back(part.token->id);
              return absl::OkStatus();
            });
      });
}

std::optional<absl::string_view> Tokenizer::TokenToDecode(int32_t id) const {
  const auto added = parts_->added_by_id.find(id);
  if (added != parts_->added_by_id.end()) return added->second->pattern;
  const std::string* in_model = parts_->bpe.vocabulary().Token(id);
  if (in_model == nullptr) return std::nullopt;
  return *in_model;
}

absl::StatusOr<std::vector<absl::string_view>> Tokenizer::TokensToDecode(
    absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<absl::string_view> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const std::optional<absl::string_view> token = TokenToDecode(id);
    if (!token) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "UNKNOWN_TOKEN",
          absl::StrCat("expected the id of a token below ", vocab_size(), ", found ", id));
    }
    if (skip_special_tokens && IsSkipped(id)) continue;
    tokens.push_back(*token);
  }
  return tokens;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              bool skip_special_tokens) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<absl::string_view> tokens,
                         TokensToDecode(ids, skip_special_tokens));
  DecodeStream stream(parts_->pipeline, TextPosition::kStart);
  std::string text;
  for (const absl::string_view token : tokens) BATON_RETURN_IF_ERROR(stream.Push(token, &text));
  BATON_RETURN_IF_ERROR(stream.Finish(&text));
  return text;
}

int Tokenizer::vocab_size() const { return parts_->vocab_size; }

std::optional<int32_t> Tokenizer::TokenToId(absl::string_view token) const {
  const auto added = parts_->added_by_content.find(token);
  if (added != parts_->added_by_content.end()) return added->second->id;
  return parts_->bpe.vocabulary().Find(token);
}

std::optional<std::string> Tokenizer::IdToToken(int32_t id) const {
  const auto added = parts_->added_by_id.find(id);
  if (added != parts_->added_by_id.end()) return added->second->content;
  const std::string* token = parts_->bpe.vocabulary().Token(id);
  if (token == nullptr) return std::nullopt;
  return *token;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const auto added = parts_->added_by_id.find(id);
  return added != parts_->added_by_id.end() && added->second->special;
}

// The decision is by the normalised text, so a special token that a normalizer changes is not
// skipped, as in Hugging Face's decode.
bool Tokenizer::IsSkipped(int32_t id) const {
  const std::optional<absl::string_view> token = TokenToDecode(id);
  return token && parts_->special_contents.contains(*token);
}

Tokenizer::AddedTokenCounts Tokenizer::added_special_tokens() const {
  const Template& enclosing = parts_->pipeline.special_tokens;
  return {static_cast<int>(enclosing.prefix.size()), static_cast<int>(enclosing.suffix.size())};
}

uint64_t Tokenizer::fingerprint() const { return parts_->fingerprint; }

}  // namespace baton::tokenizer
