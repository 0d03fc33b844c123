#include "router/score/rerank_prompt.h"

#include <utility>

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
  const auto cut = [](absl::string_view part) {
    std::vector<Piece> pieces;
    const std::pair<absl::string_view, Piece::Kind> places[] = {
        {"{query}", Piece::Kind::kQuery}, {"{instruction}", Piece::Kind::kInstruction}};
    while (!part.empty()) {
      size_t at = part.size();
      absl::string_view found;
      Piece::Kind kind = Piece::Kind::kText;
      for (const auto& [place, of] : places) {
        const size_t begin = part.find(place);
        if (begin == absl::string_view::npos || begin >= at) continue;
        at = begin;
        found = place;
        kind = of;
      }
      if (at > 0) pieces.push_back({Piece::Kind::kText, std::string(part.substr(0, at))});
      if (!found.empty()) pieces.push_back({kind, ""});
      part.remove_prefix(at + found.size());
    }
    return pieces;
  };
  RerankPrompt prompt;
  prompt.before_document_ = cut(whole.substr(0, document));
  prompt.after_document_ = cut(whole.substr(document + kDocument.size()));
  bool has_query = false;
  for (const auto* pieces : {&prompt.before_document_, &prompt.after_document_}) {
    for (const Piece& piece : *pieces) has_query |= piece.kind == Piece::Kind::kQuery;
  }
  if (!has_query) return Bad(absl::StrCat(name, ": expected {query}"));
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
  const std::string& instruction = request.instruction.empty() ? instruction_ : request.instruction;
  // Appends the pieces to `text`, and what comes from the request to `split`.
  const auto append = [&](const std::vector<Piece>& pieces, std::string& text, ByteRanges& split) {
    for (const Piece& piece : pieces) {
      const size_t begin = text.size();
      switch (piece.kind) {
        case Piece::Kind::kText:
          text += piece.text;
          continue;
        case Piece::Kind::kQuery:
          text += request.query;
          break;
        case Piece::Kind::kInstruction:
          text += instruction;
          break;
      }
      AppendRange(begin, text.size(), &split);
    }
  };
  ScoreCall::Settings settings;
  settings.request = std::move(request.names);
  append(before_document_, *settings.request.mutable_prefix(), settings.prefix_split);
  for (std::string& document : request.documents) {
    std::string& item = *settings.request.add_items();
    ByteRanges& split = settings.item_splits.emplace_back();
    item = std::move(document);
    AppendRange(0, item.size(), &split);
    append(after_document_, item, split);
  }
  for (const std::string& label : labels_) settings.request.add_labels(label);
  settings.request.set_add_special_tokens(false);  // the template writes them
  return settings;
}

}  // namespace baton::router
