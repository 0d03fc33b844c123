#include "router/score/item_prompts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "router/request/request_check.h"

namespace baton::router {

absl::StatusOr<ItemPrompts> ItemPrompts::Make(const tokenizer::Tokenizer& tokenizer, Text prefix,
                                              std::vector<std::string> labels,
                                              bool add_special_tokens, const Limits& limits) {
  ItemPrompts prompts(tokenizer, std::move(labels), add_special_tokens, limits);
  prompts.prefix_bytes_ = prefix.text.size();
  const size_t cut = tokenizer.LastCut(prefix.text);
  if (cut > 0) {
    ByteRanges split;
    AppendRangesOfPart(prefix.split, 0, cut, 0, &split);
    BATON_ASSIGN_OR_RETURN(prompts.head_tokens_,
                           tokenizer.Encode(prefix.text.substr(0, cut), add_special_tokens, split));
  }
  prompts.rest_.text = prefix.text.substr(cut);
  AppendRangesOfPart(prefix.split, cut, prefix.text.size(), 0, &prompts.rest_.split);
  BATON_ASSIGN_OR_RETURN(prompts.prefix_tokens_, prompts.Encode("", {}));
  return prompts;
}

absl::StatusOr<std::vector<int32_t>> ItemPrompts::Encode(absl::string_view text,
                                                         absl::Span<const ByteRange> split) const {
  const bool whole = head_tokens_.empty();
  ByteRanges of_all = rest_.split;
  AppendRangesOfPart(split, 0, text.size(), rest_.text.size(), &of_all);
  std::vector<int32_t> tokens;
  BATON_ASSIGN_OR_RETURN(tokens, tokenizer_.Encode(absl::StrCat(rest_.text, text),
                                                   whole && add_special_tokens_, of_all));
  if (whole) return tokens;
  std::vector<int32_t> all;
  all.reserve(head_tokens_.size() + tokens.size());
  all = head_tokens_;
  all.insert(all.end(), tokens.begin(), tokens.end());
  return all;
}

absl::Status ItemPrompts::CheckLength(int64_t tokens) const {
  if (tokens == 0) {
    return InvalidField("EMPTY_PROMPT", limits_.field,
                        absl::StrCat(limits_.prompt, " without a token"));
  }
  // With labels, it is their end that must fit.
  if (!labels_.empty() || tokens <= limits_.max_model_len) return absl::OkStatus();
  return InvalidField("PROMPT_TOO_LONG", limits_.field,
                      absl::StrCat(limits_.prompt, " of ", tokens, " tokens given, at most the ",
                                   limits_.max_model_len, " of the context accepted"));
}

absl::StatusOr<ItemPrompt> ItemPrompts::Make(std::vector<int32_t> item) const {
  BATON_RETURN_IF_ERROR(CheckTokenIds(limits_.field, item, tokenizer_.vocab_size()));
  BATON_RETURN_IF_ERROR(CheckLength(static_cast<int64_t>(item.size())));
  ItemPrompt prompt;
  prompt.tokens = std::move(item);
  return prompt;
}

absl::StatusOr<ItemPrompt> ItemPrompts::Make(const Text& item) const {
  if (prefix_bytes_ + item.text.size() == 0) {
    return InvalidField("EMPTY_PROMPT", limits_.field,
                        absl::StrCat("an empty ", limits_.prompt, " given"));
  }
  const int64_t bytes = static_cast<int64_t>(prefix_bytes_ + item.text.size());
  if (bytes > limits_.max_prompt_bytes) {
    return InvalidField("PROMPT_TOO_LONG", limits_.field,
                        absl::StrCat(bytes, " bytes of ", limits_.prompt, " given, at most ",
                                     limits_.max_prompt_bytes, " accepted (--max-prompt-bytes)"));
  }
  ItemPrompt prompt;
  BATON_ASSIGN_OR_RETURN(prompt.tokens, Encode(item.text, item.split));
  BATON_RETURN_IF_ERROR(CheckLength(static_cast<int64_t>(prompt.tokens.size())));
  prompt.prefix_tokens =
      static_cast<int>(std::mismatch(prompt.tokens.begin(), prompt.tokens.end(),
                                     prefix_tokens_.begin(), prefix_tokens_.end())
                           .first -
                       prompt.tokens.begin());
  const int64_t count = static_cast<int64_t>(prompt.tokens.size());
  for (const std::string& label : labels_) {
    std::vector<int32_t> tokens;
    BATON_ASSIGN_OR_RETURN(tokens, Encode(absl::StrCat(item.text, label), item.split));
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
