#include "common/model/embedding_config.h"

#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/gguf/documents.h"
#include "common/gguf/file.h"
#include "common/json/json.h"
#include "common/model/json_fields.h"

namespace baton::model {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
// Of llama.cpp's pooling types, the one that takes the last token's vector.
constexpr int64_t kGgufLastToken = 3;
// A file that is made for no such use may have this one.
constexpr int64_t kGgufNone = 0;

absl::StatusOr<std::optional<EmbeddingSpec>> NotServed(absl::string_view file,
                                                       absl::string_view found) {
  BATON_LOG(Warning) << file << ": found " << found
                     << ", expected the vector of the last token, normalized or not; the model's "
                        "embeddings are not served";
  return std::nullopt;
}

absl::StatusOr<std::optional<EmbeddingSpec>> OfGguf(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<gguf::File> file, gguf::File::Open(path));
  BATON_ASSIGN_OR_RETURN(const auto architecture, file->Text("general.architecture"));
  if (!architecture) return std::nullopt;
  const std::string key = absl::StrCat(*architecture, ".pooling_type");
  BATON_ASSIGN_OR_RETURN(const auto pooling, file->Integer(key));
  if (!pooling || *pooling == kGgufNone) return std::nullopt;
  if (*pooling != kGgufLastToken) return NotServed(path, absl::StrCat(key, " ", *pooling));
  return EmbeddingSpec{.normalize = true};  // as llama.cpp's servers do
}

// "Pooling" of "sentence_transformers.models.Pooling".
absl::string_view ClassName(absl::string_view type) {
  const size_t dot = type.rfind('.');
  return dot == absl::string_view::npos ? type : type.substr(dot + 1);
}

// True if the pooling takes the last token's vector and nothing else.
absl::StatusOr<bool> TakesLastToken(const std::string& file) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxBytes));
  BATON_ASSIGN_OR_RETURN(const json::Value document, json::Parse(text, file));
  BATON_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Make(document, file));
  // Newer files name the mode, older ones have a boolean for each.
  BATON_ASSIGN_OR_RETURN(const auto mode, fields.OptionalString("pooling_mode"));
  if (mode) return *mode == "lasttoken";
  bool last = false;
  for (const std::string& key : document.keys) {
    if (!absl::StartsWith(key, "pooling_mode_")) continue;
    BATON_ASSIGN_OR_RETURN(const bool on, fields.Bool(key, false));
    if (on && key != "pooling_mode_lasttoken") return false;
    last = last || on;
  }
  return last;
}

absl::StatusOr<std::optional<EmbeddingSpec>> OfDirectory(const std::string& model_dir) {
  const std::string file = absl::StrCat(model_dir, "/modules.json");
  if (!FileExists(file)) return std::nullopt;
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxBytes));
  BATON_ASSIGN_OR_RETURN(const json::Value modules, json::Parse(text, file));
  if (modules.kind != json::Value::Kind::kArray) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": expected a list of modules"));
  }
  std::vector<std::string> kinds;
  std::string pooling;
  for (const json::Value& module : modules.items) {
    BATON_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Make(module, file));
    BATON_ASSIGN_OR_RETURN(const auto type, fields.OptionalString("type"));
    BATON_ASSIGN_OR_RETURN(const auto path, fields.OptionalString("path"));
    if (!type) return fields.Invalid("type", "found nothing, expected the name of a class");
    kinds.emplace_back(ClassName(*type));
    if (kinds.back() != "Pooling") continue;
    if (!path || path->empty() || absl::StrContains(*path, '/') || *path == "..") {
      return fields.Invalid("path", absl::StrCat("found ", fields.Found("path"),
                                                 ", expected a folder beside this file"));
    }
    pooling = absl::StrCat(model_dir, "/", *path, "/config.json");
  }
  const bool normalize = kinds.size() == 3 && kinds[2] == "Normalize";
  if (kinds.size() < 2 || kinds[0] != "Transformer" || kinds[1] != "Pooling" ||
      (kinds.size() > 2 && !normalize)) {
    return NotServed(file, absl::StrCat("the modules ", absl::StrJoin(kinds, ", ")));
  }
  BATON_ASSIGN_OR_RETURN(const bool last, TakesLastToken(pooling));
  if (!last) return NotServed(pooling, "another pooling");
  return EmbeddingSpec{.normalize = normalize};
}

}  // namespace

absl::StatusOr<std::optional<EmbeddingSpec>> ReadEmbeddingSpec(const std::string& model_dir) {
  return gguf::IsGguf(model_dir) ? OfGguf(model_dir) : OfDirectory(model_dir);
}

}  // namespace baton::model
