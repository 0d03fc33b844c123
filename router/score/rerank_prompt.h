// The prompts of a model that ranks documents by how likely it says that one answers a query.
#ifndef BATON_ROUTER_SCORE_RERANK_PROMPT_H_
#define BATON_ROUTER_SCORE_RERANK_PROMPT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_range.h"
#include "router/score/score_call.h"

namespace baton::router {

// A query and its documents, as a client gives them.
struct RerankRequest {
  v1::ScoreRequest names;  // model, request_id, tenant, priority and cache_salt
  std::string query;
  std::string instruction;  // empty: the template's own
  std::vector<std::string> documents;
};

// A template is a text with {query}, maybe {instruction}, and then {document}, which stands there
// once. What clients put in their place is split (Tokenizer::Encode), so that it has no special
// tokens. Immutable, thread-safe.
class RerankPrompt {
 public:
  // `name`: that of a known template, as "qwen3" for Qwen3-Reranker, or the path of a file.
  // `labels`: "yes,no": the two texts of which a document's score is the share of the first one.
  // INVALID_ARGUMENT, NOT_FOUND or another error of reading the file.
  static absl::StatusOr<RerankPrompt> Make(const std::string& name, absl::string_view labels);

  // The call that scores the documents: an item each, with the query in the prefix.
  ScoreCall::Settings SettingsFor(RerankRequest request) const;

 private:
  // A piece of the template, or what is put there.
  struct Piece {
    enum class Kind { kText, kQuery, kInstruction };
    Kind kind = Kind::kText;
    std::string text;
  };
  RerankPrompt() = default;

  std::vector<Piece> before_document_;
  std::string after_document_;
  std::string instruction_;
  std::vector<std::string> labels_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_RERANK_PROMPT_H_
