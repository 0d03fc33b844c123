#include "common/tokenizer/model_reader.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace baton::tokenizer {
namespace {

// Published vocabularies have few gaps; this leaves room for small hand-made ones.
int64_t MaxId(size_t entry_count) { return static_cast<int64_t>(entry_count) * 4 + 4096; }

absl::StatusOr<size_t> CountMembers(const JsonCursor& object) {
  size_t count = 0;
  BATON_RETURN_IF_ERROR(object.ForEachMember([&](absl::string_view, const JsonCursor&) {
    ++count;
    return absl::OkStatus();
  }));
  return count;
}

absl::StatusOr<Vocabulary> ReadVocabulary(const JsonCursor& model) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor vocab, model.Get("vocab"));
  BATON_ASSIGN_OR_RETURN(const size_t count, CountMembers(vocab));
  if (count == 0) return vocab.Error("expected at least one token");
  int64_t highest_id = 0;
  BATON_RETURN_IF_ERROR(
      vocab.ForEachMember([&](absl::string_view, const JsonCursor& id) -> absl::Status {
        BATON_ASSIGN_OR_RETURN(const int64_t value, id.Integer(MaxId(count)));
        highest_id = std::max(highest_id, value);
        return absl::OkStatus();
      }));
  Vocabulary vocabulary(highest_id + 1);
  BATON_RETURN_IF_ERROR(
      vocab.ForEachMember([&](absl::string_view token, const JsonCursor& id) -> absl::Status {
        BATON_ASSIGN_OR_RETURN(const int64_t value, id.Integer(highest_id));
        if (vocabulary.Add(token, static_cast<int32_t>(value))) return absl::OkStatus();
        return id.Error(absl::StrCat("the id ", value, " is already that of another token"));
      }));
  return vocabulary;
}

// The two sides of "a b" or ["a", "b"].
absl::StatusOr<std::pair<std::string, std::string>> ReadSides(const JsonCursor& merge) {
  constexpr absl::string_view kExpected = "two tokens, as \"a b\" or [\"a\", \"b\"]";
  std::vector<std::string> sides;
  if (merge.is_string()) {
    BATON_ASSIGN_OR_RETURN(const std::string text, merge.String());
    sides = absl::StrSplit(text, ' ');
  } else {
    if (!merge.is_array()) return merge.Expected(kExpected);
    BATON_RETURN_IF_ERROR(merge.ForEachElement([&](const JsonCursor& side) -> absl::Status {
      BATON_ASSIGN_OR_RETURN(std::string token, side.String());
      sides.push_back(std::move(token));
      return absl::OkStatus();
    }));
  }
  if (sides.size() != 2) return merge.Expected(kExpected);
  return std::make_pair(std::move(sides[0]), std::move(sides[1]));
}

absl::StatusOr<int32_t> FindToken(const Vocabulary& vocabulary, absl::string_view token,
                                  const JsonCursor& where) {
  const std::optional<int32_t> id = vocabulary.Find(token);
  if (id) return *id;
  return where.Error(absl::StrCat("the token \"", absl::Utf8SafeCHexEscape(token.substr(0, 60)),
                                  "\" is not in model.vocab"));
}

absl::StatusOr<std::vector<BpeSpec::Merge>> ReadMerges(const JsonCursor& model,
                                                       const Vocabulary& vocabulary) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor list, model.Get("merges"));
  std::vector<BpeSpec::Merge> merges;
  BATON_RETURN_IF_ERROR(list.ForEachElement([&](const JsonCursor& merge) -> absl::Status {
    // merges.txt's first line, which some converters left in.
    if (merge.is_string() && absl::StartsWith(*merge.String(), "#version")) {
      return absl::OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(const auto sides, ReadSides(merge));
    BATON_ASSIGN_OR_RETURN(const int32_t left, FindToken(vocabulary, sides.first, merge));
    BATON_ASSIGN_OR_RETURN(const int32_t right, FindToken(vocabulary, sides.second, merge));
    BATON_ASSIGN_OR_RETURN(const int32_t merged,
                           FindToken(vocabulary, absl::StrCat(sides.first, sides.second), merge));
    merges.push_back({left, right, merged});
    return absl::OkStatus();
  }));
  return merges;
}

// Options of the model that Baton knows only as switched off.
absl::Status CheckUnusedOptions(const JsonCursor& model) {
  if (const std::optional<JsonCursor> dropout = model.Find("dropout")) {
    if (!dropout->Integer(0).ok()) return dropout->Expected("null: encoding is deterministic");
  }
  for (const absl::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::optional<JsonCursor> affix = model.Find(key);
    if (!affix) continue;
    BATON_ASSIGN_OR_RETURN(const std::string text, affix->String());
    if (!text.empty()) return affix->Expected("null or \"\"");
  }
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> ReadAddedToken(const JsonCursor& entry, int64_t max_id) {
  BATON_RETURN_IF_ERROR(entry.AllowOnly(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  BATON_ASSIGN_OR_RETURN(const JsonCursor id, entry.Get("id"));
  BATON_ASSIGN_OR_RETURN(const int64_t id_value, id.Integer(max_id));
  token.id = static_cast<int32_t>(id_value);
  BATON_ASSIGN_OR_RETURN(const JsonCursor content, entry.Get("content"));
  BATON_ASSIGN_OR_RETURN(token.content, content.String());
  if (token.content.size() > AddedTokenFinder::kMaxPatternBytes) {
    return content.Error(
        absl::StrCat("expected at most ", AddedTokenFinder::kMaxPatternBytes, " bytes"));
  }
  token.pattern = token.content;
  for (const auto& [key, flag] :
       {std::pair<absl::string_view, bool*>("single_word", &token.single_word),
        {"lstrip", &token.lstrip},
        {"rstrip", &token.rstrip},
        {"normalized", &token.normalized},
        {"special", &token.special}}) {
    BATON_ASSIGN_OR_RETURN(const JsonCursor member, entry.Get(key));
    BATON_ASSIGN_OR_RETURN(*flag, member.Bool());
  }
  return token;
}

absl::Status CheckAgainstModel(const AddedToken& token, const Vocabulary& model,
                               const JsonCursor& entry) {
  const std::optional<int32_t> model_id = model.Find(token.content);
  if (model_id && *model_id != token.id) {
    return entry.Error(absl::StrCat("expected the id ", *model_id,
                                    ", which model.vocab gives this token, found ", token.id));
  }
  if (!model_id && model.Token(token.id) != nullptr) {
    return entry.Error(
        absl::StrCat("the id ", token.id, " is that of another token in model.vocab"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BpeSpec> ReadModel(const JsonCursor& root) {
  BATON_ASSIGN_OR_RETURN(const JsonCursor model, root.Get("model"));
  // GPT-2's own file is older than the type.
  if (const std::optional<JsonCursor> type = model.Find("type")) {
    BATON_ASSIGN_OR_RETURN(const std::string name, type->String());
    if (name != "BPE") return type->Expected("BPE");
  }
  BATON_RETURN_IF_ERROR(
      model.AllowOnly({"type", "dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges",
                       "vocab", "merges", "continuing_subword_prefix", "end_of_word_suffix"}));
  BATON_RETURN_IF_ERROR(CheckUnusedOptions(model));
  BATON_ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(model));
  BpeSpec spec(std::move(vocabulary));
  BATON_ASSIGN_OR_RETURN(spec.merges, ReadMerges(model, spec.vocabulary));
  if (const std::optional<JsonCursor> unknown = model.Find("unk_token")) {
    BATON_ASSIGN_OR_RETURN(const std::string token, unknown->String());
    BATON_ASSIGN_OR_RETURN(spec.unknown, FindToken(spec.vocabulary, token, *unknown));
  }
  BATON_ASSIGN_OR_RETURN(spec.fuse_unknown, model.BoolOr("fuse_unk", false));
  BATON_ASSIGN_OR_RETURN(spec.byte_fallback, model.BoolOr("byte_fallback", false));
  BATON_ASSIGN_OR_RETURN(spec.ignore_merges, model.BoolOr("ignore_merges", false));
  return spec;
}

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonCursor& root,
                                                        const Vocabulary& model) {
  std::vector<AddedToken> tokens;
  const std::optional<JsonCursor> list = root.Find("added_tokens");
  if (!list) return tokens;
  size_t count = 0;
  BATON_RETURN_IF_ERROR(list->ForEachElement([&](const JsonCursor&) {
    ++count;
    return absl::OkStatus();
  }));
  const int64_t max_id = MaxId(model.token_count() + count);
  absl::flat_hash_set<int32_t> ids;
  absl::flat_hash_set<std::string> contents;
  BATON_RETURN_IF_ERROR(list->ForEachElement([&](const JsonCursor& entry) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(entry, max_id));
    if (token.content.empty()) return absl::OkStatus();  // matches nothing, as in Hugging Face's
    BATON_RETURN_IF_ERROR(CheckAgainstModel(token, model, entry));
    if (!ids.insert(token.id).second) return entry.Error("the id of an added token before it");
    if (!contents.insert(token.content).second) {
      return entry.Error("the content of an added token before it");
    }
    tokens.push_back(std::move(token));
    return absl::OkStatus();
  }));
  return tokens;
}

}  // namespace baton::tokenizer
