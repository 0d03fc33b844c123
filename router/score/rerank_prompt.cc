#include "router/score/rerank_prompt.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace baton::router {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{64} << 10;

// The prompt with which Qwen3-Reranker was trained, and its default instruction.
constexpr absl::string_view kQwen3 =
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n"
    "<Instruct>: {instruction}\n"
    "<Query>: {query}\n"
    "<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n";
constexpr absl::string_view kInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

constexpr absl::string_view kDocument = "{document}";

absl::Status Bad(absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_RERANK_TEMPLATE",
                   absl::StrCat("--rerank-template: ", what));
}

}  // namespace

absl::StatusOr<RerankPrompt> RerankPrompt::Make(const std::string& name, absl::string_view labels) {
  std::string text(kQwen3);
  if (name != "qwen3") {
    BATON_ASSIGN_OR_RETURN(text, ReadFile(name, kMaxTemplateBytes));
  }
  const absl::string_view whole = text;
  const size_t document = whole.find(kDocument);
  if (document == whole.npos || whole.find(kDocument, document + kDocument.size()) != whole.npos) {
    return Bad(absl::StrCat(name, ": expected {document} once"));
  }
  RerankPrompt prompt;
  prompt.after_document_ = std::string(whole.substr(document + kDocument.size()));
  constexpr std::pair<absl::string_view, Piece::Kind> kPlaces[] = {
      {"{query}", Piece::Kind::kQuery}, {"{instruction}", Piece::Kind::kInstruction}};
  bool has_query = false;
  absl::string_view part = whole.substr(0, document);
  while (!part.empty()) {
    size_t at = part.size();
    absl::string_view found;
    Piece::Kind kind = Piece::Kind::kText;
    for (const auto& [place, of] : kPlaces) {
      const size_t begin = part.find(place);
      if (begin == absl::string_view::npos || begin >= at) continue;
      at = begin;
      found = place;
      kind = of;
    }
    if (at > 0) {
      prompt.before_document_.push_back({Piece::Kind::kText, std::string(part.substr(0, at))});
    }
    if (!found.empty()) prompt.before_document_.push_back({kind, ""});
    has_query = has_query || kind == Piece::Kind::kQuery;
    part.remove_prefix(at + found.size());
  }
  if (!has_query) return Bad(absl::StrCat(name, ": expected {query} before {document}"));
  for (const auto& [place, of] : kPlaces) {
    // Each document would have a copy of what is put there.
    if (!absl::StrContains(prompt.after_document_, place)) continue;
    return Bad(absl::StrCat(name, ": found ", place, " behind {document}, expected it before"));
  }
  prompt.instruction_ = std::string(kInstruction);
  prompt.labels_ = absl::StrSplit(labels, ',');
  if (prompt.labels_.size() != 2 || prompt.labels_[0].empty() || prompt.labels_[1].empty() ||
      prompt.labels_[0] == prompt.labels_[1]) {
    return MakeError(absl::StatusCode::kInvalidArgument, "BAD_RERANK_TEMPLATE",
                     absl::StrCat("--rerank-labels: \"", labels,
                                  "\" given, two different texts with a comma between expected"));
  }
  return prompt;
}

ScoreCall::Settings RerankPrompt::SettingsFor(RerankRequest request) const {
  ScoreCall::Settings settings;
  settings.request = std::move(request.names);
  std::string& prefix = *settings.request.mutable_prefix();
  for (const Piece& piece : before_document_) {
    const size_t begin = prefix.size();
    switch (piece.kind) {
      case Piece::Kind::kText:
        prefix += piece.text;
        continue;
      case Piece::Kind::kQuery:
        prefix += request.query;
        break;
      case Piece::Kind::kInstruction:
        prefix += request.instruction.empty() ? instruction_ : request.instruction;
        break;
    }
    AppendRange(begin, prefix.size(), &settings.prefix_split);
  }
  for (std::string& document : request.documents) {
    AppendRange(0, document.size(), &settings.item_splits.emplace_back());
    std::string& item = *settings.request.add_items();
    item = std::move(document);
    item += after_document_;
  }
  for (const std::string& label : labels_) settings.request.add_labels(label);
  settings.request.set_add_special_tokens(false);  // the template writes them
  return settings;
}

}  // namespace baton::router
