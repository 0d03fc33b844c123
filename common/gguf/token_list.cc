#include "common/gguf/token_list.h"

#include "absl/strings/str_cat.h"
#include "common/base/json_string.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/gguf/json_object.h"

namespace baton::gguf {
namespace {

constexpr uint64_t kMaxListBytes = uint64_t{64} << 20;  // known vocabularies have below 8 MiB

}  // namespace

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

absl::Status ForEachToken(const File& file, absl::FunctionRef<absl::Status(const Token&)> visit) {
  BATON_ASSIGN_OR_RETURN(const auto model, file.Text(kTokenizerModelKey));
  const bool has_bytes = model == kSentencePieceModel || model == kGemma4Model;
  const int64_t last_type = has_bytes ? kByteToken : kUnusedToken;
  BATON_ASSIGN_OR_RETURN(const Texts tokens, RequiredTexts(file, kTokensKey));
  BATON_ASSIGN_OR_RETURN(const auto types, file.IntegerList(kTokenTypesKey));
  if (!types || types->size() != tokens.size()) {
    return file.Invalid(kTokenTypesKey, absl::StrCat("found ", types ? types->size() : 0,
                                                     " types, expected one for each of ",
                                                     tokens.size(), " tokens"));
  }
  return tokens.ForEach([&](uint64_t id, absl::string_view text) -> absl::Status {
    const int64_t type = types->At(id);
    if (text.empty()) return absl::OkStatus();
    if (type < kNormalToken || type > last_type) {
      return file.Unsupported(
          Element(kTokenTypesKey, id),
          absl::StrCat("found ", type, ", expected ", int64_t{kNormalToken}, " to ", last_type));
    }
    if (!IsUtf8(text)) {
      return file.Invalid(Element(kTokensKey, id), "found other bytes than UTF-8, expected a text");
    }
    return visit({id, text, static_cast<TokenType>(type)});
  });
}

absl::StatusOr<std::optional<std::pair<int64_t, std::string>>> TokenOf(const File& file,
                                                                       absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const auto id, file.Integer(key));
  if (!id) return std::nullopt;
  std::string found;
  BATON_RETURN_IF_ERROR(ForEachToken(file, [&](const Token& token) {
    if (static_cast<int64_t>(token.id) == *id && token.type != kUnusedToken) {
      found = std::string(token.text);
    }
    return absl::OkStatus();
  }));
  if (found.empty()) {
    return file.Invalid(key, absl::StrCat("found ", *id, ", expected the id of a token"));
  }
  return std::make_pair(*id, std::move(found));
}

void AppendAddedToken(const Token& token, absl::string_view content, bool rstrip,
                      std::string* entries) {
  JsonObject entry;
  entry.AddInteger("id", static_cast<int64_t>(token.id));
  entry.AddText("content", content);
  entry.AddBool("single_word", false);
  entry.AddBool("lstrip", false);
  entry.AddBool("rstrip", rstrip);
  entry.AddBool("normalized", false);
  entry.AddBool("special", token.type != kUserDefinedToken);
  absl::StrAppend(entries, entries->empty() ? "" : ",", entry.Text());
}

absl::StatusOr<std::string> ListedMergesJson(const File& file) {
  BATON_ASSIGN_OR_RETURN(const Texts merges, RequiredTexts(file, kMergesKey));
  std::string pairs;
  BATON_RETURN_IF_ERROR(merges.ForEach([&](uint64_t i, absl::string_view text) -> absl::Status {
    if (!IsUtf8(text)) {
      return file.Invalid(Element(kMergesKey, i), "found other bytes than UTF-8, expected a text");
    }
    if (!pairs.empty()) pairs += ",";
    AppendJsonString(text, &pairs);
    return absl::OkStatus();
  }));
  return absl::StrCat("[", pairs, "]");
}

}  // namespace baton::gguf
