#include "router/score/item_prompts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "router/request/request_check.h"

namespace baton::router {

absl::StatusOr<ItemPrompts> ItemPrompts::Make(const tokenizer::Tokenizer& tokenizer,
                                              std::string prefix, std::vector<std::string> labels,
                                              bool add_special_tokens, const Limits& limits) {
  ItemPrompts prompts(tokenizer, std::move(labels), add_special_tokens, limits);
  prompts.prefix_bytes_ = prefix.size();
  const size_t cut = tokenizer.LastCut(prefix);
  if (cut > 0) {
    BATON_ASSIGN_OR_RETURN(prompts.head_tokens_,
                           tokenizer.Encode(prefix.substr(0, cut), add_special_tokens));
  }
  prompts.rest_ = prefix.substr(cut);
  BATON_ASSIGN_OR_RETURN(prompts.prefix_tokens_, prompts.Encode(""));
  return prompts;
}

absl::StatusOr<std::vector<int32_t>> ItemPrompts::Encode(absl::string_view text) const {
  const bool whole = head_tokens_.empty();
  std::vector<int32_t> tokens;
  BATON_ASSIGN_OR_RETURN(
      tokens, tokenizer_.Encode(absl::StrCat(rest_, text), whole && add_special_tokens_));
  if (whole) return tokens;
  std::vector<int32_t> all;
  all.reserve(head_tokens_.size() + tokens.size());
  all = head_tokens_;
  all.insert(all.end(), tokens.begin(), tokens.end());
  return all;
}

absl::StatusOr<ItemPrompt> ItemPrompts::Make(absl::string_view item) const {
  if (prefix_bytes_ + item.size() == 0) {
    return InvalidField("EMPTY_PROMPT", "items", "prefix and item are empty");
  }
  const int64_t bytes = static_cast<int64_t>(prefix_bytes_ + item.size());
  if (bytes > limits_.max_prompt_bytes) {
    return InvalidField("PROMPT_TOO_LONG", "items",
                        absl::StrCat(bytes, " bytes of prefix and item given, at most ",
                                     limits_.max_prompt_bytes, " accepted (--max-prompt-bytes)"));
  }
  ItemPrompt prompt;
  BATON_ASSIGN_OR_RETURN(prompt.tokens, Encode(item));
  if (prompt.tokens.empty()) {
    return InvalidField("EMPTY_PROMPT", "items", "prefix and item have no tokens");
  }
  prompt.prefix_tokens =
      static_cast<int>(std::mismatch(prompt.tokens.begin(), prompt.tokens.end(),
                                     prefix_tokens_.begin(), prefix_tokens_.end())
                           .first -
                       prompt.tokens.begin());
  const int64_t count = static_cast<int64_t>(prompt.tokens.size());
  for (const std::string& label : labels_) {
    std::vector<int32_t> tokens;
    BATON_ASSIGN_OR_RETURN(tokens, Encode(absl::StrCat(item, label)));
    if (tokens.size() <= prompt.tokens.size() ||
        !std::equal(prompt.tokens.begin(), prompt.tokens.end(), tokens.begin())) {
      return InvalidField("LABEL_NOT_SEPARATE", "labels",
                          absl::StrCat("the tokens of prefix + item + \"", label,
                                       "\" do not begin with those of prefix + item; expected an "
                                       "item and a label that meet at a token's end"));
    }
    if (static_cast<int64_t>(tokens.size()) > limits_.max_model_len) {
      return InvalidField(
          "PROMPT_TOO_LONG", "items",
          absl::StrCat("prefix and item have ", count, " tokens; with the label's ",
                       static_cast<int64_t>(tokens.size()) - count,
                       " they must fit in the context of ", limits_.max_model_len, " tokens"));
    }
    prompt.labels.emplace_back(tokens.begin() + count, tokens.end());
  }
  return prompt;
}

}  // namespace baton::router
