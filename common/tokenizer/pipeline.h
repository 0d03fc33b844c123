// The steps of a tokenizer.json as data, flattened: a Sequence becomes its members. Read once at
// load (pipeline_reader.h) and never changed, so thread-safe. What a step does is defined by the
// Hugging Face `tokenizers` component of the same name; normalizer.h, pre_tokenizer.h and decoder.h
// run them.
#ifndef BATON_COMMON_TOKENIZER_PIPELINE_H_
#define BATON_COMMON_TOKENIZER_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/tokenizer/regex.h"

namespace baton::tokenizer {

// Normalizers: text to text.

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
struct Lowercase {};
struct Prepend {
  std::string text;
};
struct Replace {  // also a decoder
  Matcher pattern;
  std::string content;
};
struct StripWhitespace {
  bool left;
  bool right;
};
using Normalizer = std::variant<UnicodeForm, Lowercase, Prepend, Replace, StripWhitespace>;

// Pre-tokenizers: text to pieces of text.

// A match becomes a separate piece, is removed, joins the piece before or the piece after, or joins
// the matches next to it.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
struct Split {
  Matcher pattern;
  SplitBehavior behavior;
  bool invert;
};
// Splits at single characters of a class.
struct SplitAtClass {
  bool (*contains)(char32_t);
  SplitBehavior behavior;
};
// Splits into runs of word characters and runs of other characters that are not white space.
struct SplitWords {};
struct ByteLevelSplit {
  bool add_prefix_space;
  bool use_regex;
  // Whether to spell the bytes with their names. Not for the last step: the model then works on the
  // bytes themselves, which avoids writing the text twice.
  bool name_bytes;
};
enum class PrependScheme { kFirst, kNever, kAlways };
struct MetaspaceSplit {
  std::string replacement;
  PrependScheme prepend_scheme;
  bool split;
};
using PreTokenizer = std::variant<Split, SplitAtClass, SplitWords, ByteLevelSplit, MetaspaceSplit>;

// Decoders: tokens to text.

struct DecodeByteLevel {};
struct DecodeByteFallback {};
struct Fuse {};
struct StripChars {
  std::string content;  // one character
  size_t start;
  size_t stop;
};
struct DecodeMetaspace {
  std::string replacement;
  bool drop_first;
};
using Decoder =
    std::variant<Replace, DecodeByteLevel, DecodeByteFallback, Fuse, StripChars, DecodeMetaspace>;

// The special tokens around the tokens of a text.
struct Template {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

struct Pipeline {
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  // True if the last pre-tokenizer is ByteLevel: the model gets bytes, not characters.
  bool byte_level = false;
  Template special_tokens;
  std::vector<Decoder> decoders;
  // True if the file has no decoder: tokens are then joined by spaces.
  bool decoder_absent = false;
};

// True if one of the decoders is of this kind.
template <class Kind>
bool Has(const Pipeline& pipeline) {
  for (const Decoder& decoder : pipeline.decoders) {
    if (std::holds_alternative<Kind>(decoder)) return true;
  }
  return false;
}

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_PIPELINE_H_
