// Which tokens are a part of an answer's text: all but the special ones that are not shown.
#ifndef BATON_ROUTER_REQUEST_SHOWN_TOKENS_H_
#define BATON_ROUTER_REQUEST_SHOWN_TOKENS_H_

#include <cstdint>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::router {

// Immutable, thread-safe.
class ShownTokens {
 public:
  // `tokenizer` and `shown_special_tokens` must outlive it.
  explicit ShownTokens(const tokenizer::Tokenizer& tokenizer,
                       absl::Span<const int32_t> shown_special_tokens = {})
      : tokenizer_(tokenizer), shown_special_tokens_(shown_special_tokens) {}

  // False for ids without a token, which have no text.
  bool Hides(int32_t id) const {
    return tokenizer_.IsSkipped(id) && !absl::c_linear_search(shown_special_tokens_, id);
  }

 private:
  const tokenizer::Tokenizer& tokenizer_;
  const absl::Span<const int32_t> shown_special_tokens_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_SHOWN_TOKENS_H_
