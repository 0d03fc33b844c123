// Makes the prompts of a scoring call: prefix and item as one text, and the tokens of each label
// after it.
#ifndef BATON_ROUTER_SCORE_ITEM_PROMPTS_H_
#define BATON_ROUTER_SCORE_ITEM_PROMPTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/byte_range.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::router {

struct ItemPrompt {
  std::vector<int32_t> tokens;               // of prefix + item
  std::vector<std::vector<int32_t>> labels;  // of each label, behind these
  int prefix_tokens = 0;                     // of `tokens`, those that the prefix alone has, too
};

// Immutable, thread-safe. Takes up to milliseconds for an item with a long prefix.
class ItemPrompts {
 public:
  struct Limits {
    int max_model_len = 0;
    int64_t max_prompt_bytes = 0;
    // For messages: the field of the items, and what a prompt is made of.
    const char* field = "items";
    const char* prompt = "prefix and item";
  };
  // A text, and the parts of it that are split: Tokenizer::Encode.
  struct Text {
    std::string text;
    ByteRanges split;
  };
  // `tokenizer` must outlive it. INVALID_ARGUMENT if the prefix cannot be tokenized.
  static absl::StatusOr<ItemPrompts> Make(const tokenizer::Tokenizer& tokenizer, Text prefix,
                                          std::vector<std::string> labels, bool add_special_tokens,
                                          const Limits& limits);

  const std::vector<int32_t>& prefix_tokens() const { return prefix_tokens_; }
  // How many bytes Make tokenizes for an item of so many: of each label, the item again, and what
  // of the prefix cannot be tokenized apart.
  size_t TokenizedBytes(size_t item_bytes) const {
    return (rest_.text.size() + item_bytes) * (1 + labels_.size());
  }

  // INVALID_ARGUMENT: EMPTY_PROMPT; PROMPT_TOO_LONG for the context; LABEL_NOT_SEPARATE if the
  // tokens of prefix + item + label do not begin with those of prefix + item.
  absl::StatusOr<ItemPrompt> Make(const Text& item) const;
  // The same for an item of these tokens. REQUIRES: there are no labels, and the prefix is empty.
  absl::StatusOr<ItemPrompt> Make(std::vector<int32_t> item) const;

 private:
  ItemPrompts(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> labels,
              bool add_special_tokens, const Limits& limits)
      : tokenizer_(tokenizer),
        labels_(std::move(labels)),
        add_special_tokens_(add_special_tokens),
        limits_(limits) {}

  // The tokens of prefix + `text`; of the latter, the ranges are split.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              absl::Span<const ByteRange> split) const;
  // Of a prompt without its labels.
  absl::Status CheckLength(int64_t tokens) const;

  const tokenizer::Tokenizer& tokenizer_;
  const std::vector<std::string> labels_;
  const bool add_special_tokens_;
  const Limits limits_;
  size_t prefix_bytes_ = 0;
  std::vector<int32_t> prefix_tokens_;
  // The prefix up to a place where every continuation is tokenized separately, and its rest.
  std::vector<int32_t> head_tokens_;
  Text rest_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_ITEM_PROMPTS_H_
