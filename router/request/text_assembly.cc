#include "router/request/text_assembly.h"

namespace baton::router {

TextAssembly::Piece TextAssembly::Append(absl::Span<const int32_t> token_ids, End end) {
  Piece piece;
  // One by one, to know which token completes a stop string.
  for (size_t i = 0; i < token_ids.size(); ++i) {
    piece.token_ids.push_back(token_ids[i]);
    ++token_count_;
    if (end == End::kStopToken && i + 1 == token_ids.size()) break;
    if (shown_.Hides(token_ids[i])) continue;
    const absl::StatusOr<std::string> text = detokenizer_.Append(token_ids.subspan(i, 1));
    if (!text.ok()) continue;  // no such token; nothing was taken
    piece.text += matcher_.Append(*text, token_count_ >= min_tokens_);
    if (matcher_.matched()) return piece;
  }
  if (end == End::kNone) return piece;
  piece.text += matcher_.Append(detokenizer_.Flush(), token_count_ >= min_tokens_);
  if (!matcher_.matched()) piece.text += matcher_.Flush();
  return piece;
}

}  // namespace baton::router
