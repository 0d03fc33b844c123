#include "common/gguf/documents.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/gguf/file.h"
#include "common/gguf/generation_json.h"
#include "common/gguf/token_list.h"
#include "common/gguf/tokenizer_json.h"

namespace baton::gguf {

bool IsGguf(absl::string_view model) { return absl::EndsWithIgnoreCase(model, ".gguf"); }

std::string DocumentName(absl::string_view model, absl::string_view document) {
  return IsGguf(model) ? absl::StrCat(model, " (as ", document, ")")
                       : absl::StrCat(model, "/", document);
}

absl::StatusOr<std::optional<std::string>> ReadDocument(const std::string& path,
                                                        absl::string_view document) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, File::Open(path));
  if (document == "generation_config.json") return GenerationConfigJson(*file);
  if (!file->Has(kTokenizerModelKey)) return std::nullopt;
  if (document == "tokenizer.json") return TokenizerJson(*file);
  BATON_CHECK(document == "tokenizer_config.json") << document;
  return TokenizerConfigJson(*file);
}

}  // namespace baton::gguf
