#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/json_string.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/gguf/json_object.h"
#include "common/gguf/token_list.h"
#include "common/gguf/tokenizer_parts.h"

namespace baton::gguf {
namespace {

constexpr absl::string_view kScores = "tokenizer.ggml.scores";
constexpr absl::string_view kUnknown = "tokenizer.ggml.unknown_token_id";
constexpr absl::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a space

// Known pieces have below 128 bytes. This and the next bound the time and the memory.
constexpr size_t kMaxPieceBytes = 1024;
constexpr size_t kMaxMergesBytes = size_t{64} << 20;  // as JSON; Gemma 3's have below 16 MiB

struct Piece {
  Token token;
  std::string text;     // of the token, spaces as the model has them
  double score = 0;     // the order of merges that make it
  bool merges = false;  // other pieces may become it, or it a part of others
};

struct Merge {
  double score;
  uint32_t piece;
  uint32_t left_bytes;
  uint32_t left_chars, right_chars;
};

bool IsRunOfSpaces(absl::string_view text) {
  return absl::StrReplaceAll(text, {{kSpace, ""}, {" ", ""}}).empty();
}

// What converters write for an id that the vocabulary does not have.
bool IsPadding(const Token& token) {
  return token.type == kUnusedToken && token.text == absl::StrCat("[PAD", token.id, "]");
}

absl::Status CheckByteToken(const File& file, const Token& token) {
  const auto is_digit = [](char c) { return absl::ascii_isxdigit(c) && !absl::ascii_islower(c); };
  absl::string_view digits = token.text;
  if (absl::ConsumePrefix(&digits, "<0x") && absl::ConsumeSuffix(&digits, ">") &&
      digits.size() == 2 && absl::c_all_of(digits, is_digit)) {
    return absl::OkStatus();
  }
  return file.Invalid(Element(kTokensKey, token.id),
                      "found another text for a byte, expected one as \"<0x0A>\"");
}

class SentencePiece {
 public:
  // lists_merges: the file has them, and nothing follows from scores.
  SentencePiece(const File& file, bool lists_merges) : file_(file), lists_merges_(lists_merges) {}

  absl::Status Read() {
    BATON_RETURN_IF_ERROR(RefuseNormalizers());
    BATON_ASSIGN_OR_RETURN(const auto prefix, file_.Bool("tokenizer.ggml.add_space_prefix"));
    space_prefix_ = prefix.value_or(!lists_merges_);
    BATON_RETURN_IF_ERROR(ReadPieces());
    if (!lists_merges_) RespellSpaces();
    return absl::OkStatus();
  }

  absl::StatusOr<TokenizerParts> Parts() const {
    TokenizerParts parts;
    SetSteps(&parts);
    BATON_ASSIGN_OR_RETURN(parts.added_tokens, AddedTokensJson());
    BATON_ASSIGN_OR_RETURN(parts.model, ModelJson());
    parts.add_bos = true;
    return parts;
  }

 private:
  absl::Status RefuseNormalizers() const {
    for (const char* key :
         {"tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.remove_extra_whitespaces"}) {
      if (!file_.IsOff(key)) {
        return file_.Unsupported(key, "found a normalization of text, expected none");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadPieces() {
    BATON_ASSIGN_OR_RETURN(const Texts tokens, RequiredTexts(file_, kTokensKey));
    BATON_ASSIGN_OR_RETURN(const auto scores, file_.RealList(kScores));
    if (!lists_merges_ && (!scores || scores->size() != tokens.size())) {
      return file_.Invalid(
          kScores, absl::StrCat("found ", scores ? scores->size() : 0,
                                " scores, expected one for each of ", tokens.size(), " tokens"));
    }
    return ForEachToken(file_, [&](const Token& token) -> absl::Status {
      if (IsPadding(token)) return absl::OkStatus();
      Piece piece{token, std::string(token.text), lists_merges_ ? 0 : scores->At(token.id),
                  token.type == kNormalToken || token.type == kUnusedToken};
      if (!std::isfinite(piece.score)) {
        return file_.Invalid(Element(kScores, token.id), "found no finite number, expected one");
      }
      if (piece.merges && token.text.size() > kMaxPieceBytes) {
        return file_.Invalid(
            Element(kTokensKey, token.id),
            absl::StrCat("found ", token.text.size(), " bytes, expected at most ", kMaxPieceBytes));
      }
      if (token.type == kByteToken) {
        BATON_RETURN_IF_ERROR(CheckByteToken(file_, token));
        has_bytes_ = true;
      }
      inst_is_control_ |= token.type == kControlToken && token.text == "[INST]";
      pieces_.push_back(std::move(piece));
      return absl::OkStatus();
    });
  }

  // Runs of spaces that are user-defined stand in files as spaces, with a made-up score. They are
  // symbols that SentencePiece takes before all merges, which merges before all others amount to.
  void RespellSpaces() {
    absl::flat_hash_set<std::string> taken;
    for (const Piece& piece : pieces_) taken.insert(piece.text);
    for (Piece& piece : pieces_) {
      if (piece.token.type != kUserDefinedToken || !IsRunOfSpaces(piece.text)) continue;
      std::string text = absl::StrReplaceAll(piece.text, {{" ", kSpace}});
      if (text != piece.text && !taken.insert(text).second) continue;
      piece.text = std::move(text);
      piece.score = std::numeric_limits<double>::infinity();
      piece.merges = piece.text.size() <= kMaxPieceBytes;
    }
  }

  // Mistral's models whose [INST] is a token were published with Metaspace, which puts no space
  // behind a token; earlier models, and other families, with Prepend, which does.
  void SetSteps(TokenizerParts* parts) const {
    JsonObject pattern, to_model, from_model, from_pattern;
    pattern.AddText("String", " ");
    to_model.AddText("type", "Replace");
    to_model.AddJson("pattern", pattern.Text());
    to_model.AddText("content", kSpace);
    from_pattern.AddText("String", kSpace);
    from_model.AddText("type", "Replace");
    from_model.AddJson("pattern", from_pattern.Text());
    from_model.AddText("content", " ");
    if (!space_prefix_) {
      parts->normalizer = to_model.Text();
    } else if (inst_is_control_) {
      JsonObject metaspace;
      metaspace.AddText("type", "Metaspace");
      metaspace.AddText("replacement", kSpace);
      metaspace.AddText("prepend_scheme", "first");
      metaspace.AddBool("split", false);
      parts->pre_tokenizer = metaspace.Text();
    } else {
      JsonObject prepend, sequence;
      prepend.AddText("type", "Prepend");
      prepend.AddText("prepend", kSpace);
      sequence.AddText("type", "Sequence");
      sequence.AddJson("normalizers",
                       absl::StrCat("[", prepend.Text(), ", ", to_model.Text(), "]"));
      parts->normalizer = sequence.Text();
    }
    JsonObject decoder;
    decoder.AddText("type", "Sequence");
    decoder.AddJson(
        "decoders",
        absl::StrCat(
            "[", from_model.Text(), R"(, {"type": "ByteFallback"}, {"type": "Fuse"})",
            space_prefix_ ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "",
            "]"));
    parts->decoder = decoder.Text();
  }

  // Phi-3's published chat tokens take the white space behind them, which its template writes.
  absl::StatusOr<std::string> AddedTokensJson() const {
    BATON_ASSIGN_OR_RETURN(const auto architecture, file_.Text("general.architecture"));
    std::string entries;
    for (const Piece& piece : pieces_) {
      const TokenType type = piece.token.type;
      if (type != kUnknownToken && type != kControlToken && type != kUserDefinedToken) continue;
      const absl::string_view text = piece.token.text;
      const bool plain = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
      AppendAddedToken(piece.token, piece.text, architecture == "phi3" && !plain, &entries);
    }
    return absl::StrCat("[", entries, "]");
  }

  absl::StatusOr<std::string> ModelJson() const {
    std::string vocab;
    for (const Piece& piece : pieces_) {
      if (!vocab.empty()) vocab += ",";
      AppendJsonString(piece.text, &vocab);
      absl::StrAppend(&vocab, ":", piece.token.id);
    }
    BATON_ASSIGN_OR_RETURN(const std::string merges,
                           lists_merges_ ? ListedMergesJson(file_) : MergesJson());
    BATON_ASSIGN_OR_RETURN(const auto unknown, UnknownToken());
    JsonObject model;
    model.AddText("type", "BPE");
    if (unknown) model.AddText("unk_token", *unknown);
    model.AddBool("fuse_unk", true);
    model.AddBool("byte_fallback", has_bytes_);
    model.AddBool("ignore_merges", false);
    model.AddJson("vocab", absl::StrCat("{", vocab, "}"));
    model.AddJson("merges", merges);
    return model.Text();
  }

  absl::StatusOr<std::optional<std::string>> UnknownToken() const {
    BATON_ASSIGN_OR_RETURN(const auto named, TokenOf(file_, kUnknown));
    for (const Piece& piece : pieces_) {
      const bool found = named ? static_cast<int64_t>(piece.token.id) == named->first
                               : piece.token.type == kUnknownToken;
      if (found) return piece.text;
    }
    return std::nullopt;
  }

  absl::StatusOr<std::string> MergesJson() const {
    BATON_ASSIGN_OR_RETURN(std::vector<Merge> merges, FindMerges());
    std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
      if (a.score != b.score) return a.score > b.score;
      if (a.left_chars != b.left_chars) return a.left_chars > b.left_chars;
      return a.right_chars > b.right_chars;
    });
    std::string json = "[";
    for (const Merge& merge : merges) {
      const absl::string_view text = pieces_[merge.piece].text;
      json += json.size() == 1 ? "[" : ",[";
      AppendJsonString(text.substr(0, merge.left_bytes), &json);
      json += ",";
      AppendJsonString(text.substr(merge.left_bytes), &json);
      json += "]";
      if (json.size() > kMaxMergesBytes) return TooManyMerges();
    }
    return json + "]";
  }

  // All ways to cut a piece into two, in the order of pieces.
  absl::StatusOr<std::vector<Merge>> FindMerges() const {
    absl::flat_hash_set<absl::string_view> parts;
    for (const Piece& piece : pieces_) {
      if (piece.merges) parts.insert(piece.text);
    }
    std::vector<Merge> merges;
    size_t bytes = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const absl::string_view text = pieces_[i].text;
      if (!pieces_[i].merges) continue;
      uint32_t chars = 0;
      const size_t first = merges.size();
      for (size_t at = 0; at < text.size(); at += Utf8CharBytes(text[at]), ++chars) {
        if (at == 0 || !parts.contains(text.substr(0, at)) || !parts.contains(text.substr(at))) {
          continue;
        }
        bytes += text.size();
        if (bytes > kMaxMergesBytes) return TooManyMerges();
        merges.push_back(
            {pieces_[i].score, static_cast<uint32_t>(i), static_cast<uint32_t>(at), chars, 0});
      }
      for (size_t m = first; m < merges.size(); ++m) {
        merges[m].right_chars = chars - merges[m].left_chars;
      }
    }
    return merges;
  }

  absl::Status TooManyMerges() const {
    return file_.Invalid(kTokensKey, absl::StrCat("found more than ", kMaxMergesBytes,
                                                  " bytes of merges, expected fewer"));
  }

  const File& file_;
  const bool lists_merges_;
  std::vector<Piece> pieces_;
  bool space_prefix_ = true;
  bool has_bytes_ = false;
  bool inst_is_control_ = false;
};

}  // namespace

absl::StatusOr<TokenizerParts> SentencePieceParts(const File& file) {
  SentencePiece reader(file, /*lists_merges=*/false);
  BATON_RETURN_IF_ERROR(reader.Read());
  return reader.Parts();
}

absl::StatusOr<TokenizerParts> Gemma4Parts(const File& file) {
  SentencePiece reader(file, /*lists_merges=*/true);
  BATON_RETURN_IF_ERROR(reader.Read());
  BATON_ASSIGN_OR_RETURN(TokenizerParts parts, reader.Parts());
  parts.forces_bos = true;
  return parts;
}

}  // namespace baton::gguf
