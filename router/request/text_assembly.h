// From token ids to the text that a client sees: detokenizing, stop strings, stop tokens.
#ifndef BATON_ROUTER_REQUEST_TEXT_ASSEMBLY_H_
#define BATON_ROUTER_REQUEST_TEXT_ASSEMBLY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/tokenizer/incremental_detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "router/request/shown_tokens.h"
#include "router/request/stop_matcher.h"

namespace baton::router {

// For one choice of a request; unsynchronized.
class TextAssembly {
 public:
  // `tokenizer` and `shown_special_tokens` must outlive it. No stop string is looked for before
  // `min_tokens` tokens. Other special tokens are not part of the text.
  TextAssembly(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops,
               int min_tokens = 0, absl::Span<const int32_t> shown_special_tokens = {})
      : shown_(tokenizer, shown_special_tokens),
        min_tokens_(min_tokens),
        detokenizer_(tokenizer, /*skip_special_tokens=*/false,
                     tokenizer::TextPosition::kContinuation),
        matcher_(std::move(stops)) {}

  enum class End {
    kNone,       // more tokens may come
    kStopToken,  // the last id is a stop token, which is not part of the text
    kLength,
  };
  struct Piece {
    std::string text;                // whole UTF-8; held back while it may begin a stop string
    std::vector<int32_t> token_ids;  // up to the one that completes a stop string
  };
  // Ids without a token give no text: models have more outputs than their tokenizers have tokens.
  // After a stop string has matched, nothing more may be appended.
  Piece Append(absl::Span<const int32_t> token_ids, End end);

  const std::optional<std::string>& matched_stop() const { return matcher_.matched(); }

 private:
  const ShownTokens shown_;
  const int min_tokens_;
  int token_count_ = 0;
  tokenizer::IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TEXT_ASSEMBLY_H_
