// Converts text to token ids and back, as a Hugging Face tokenizer.json says: the model BPE with
// its added tokens, normalizers, pre-tokenizers, post-processors and decoders. Equal to the package
// `tokenizers` token for token; anything in a file that Baton would do differently is refused at
// load. README.md of this folder lists the components.
//
// Added tokens are recognised in all text, including a user's, except that Encode recognises no
// special token in the parts of a text that it is to split.
#ifndef BATON_COMMON_TOKENIZER_TOKENIZER_H_
#define BATON_COMMON_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/byte_range.h"

namespace baton::tokenizer {

// Immutable once loaded, thread-safe.
class Tokenizer {
 public:
  // Encode refuses longer texts. The limit of a request is far lower and set elsewhere.
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;

  // Reads `model_dir`/tokenizer.json, or the tokenizer in the GGUF file of this name. NOT_FOUND
  // without such a file; other errors as for FromJson, and UNIMPLEMENTED, with the same reason, for
  // a GGUF file with another kind of tokenizer than byte-level BPE, or an unknown pre-tokenizer.
  // tokenizer_config.json is not read: it holds nothing that changes what `tokenizers` does.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);

  // `origin` names the file in errors. INVALID_ARGUMENT, reason "BAD_TOKENIZER", with the path
  // inside the file for everything malformed, contradictory or not supported.
  // truncation and padding are ignored, as `transformers` switches them off too.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(absl::string_view json,
                                                             absl::string_view origin);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `add_special_tokens` applies the post-processor, which e.g. puts the BOS token first; pass
  // false for text that a chat template made.
  //
  // Special tokens are not recognised where a byte of theirs is in `split`, parts of the text as in
  // ByteRanges: these bytes become tokens as if the tokenizer had no special tokens. Other added
  // tokens are. Between two recognised tokens the text is encoded as a whole, so that `split`
  // changes nothing where it hides no token. Where a normalizer changes a part of the text (such as
  // a character and its accent), all of the part is in `split` if a byte of it is.
  //
  // INVALID_ARGUMENT: reason "INVALID_UTF8" with the byte offset, "TEXT_TOO_LONG", or
  // "TEXT_TOO_COMPLEX" (see Matcher::ForEachMatch).
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special_tokens,
                                              absl::Span<const ByteRange> split = {}) const;

  // The tokens of a text, with places at which it can be cut.
  struct Encoded {
    struct Cut {
      size_t byte = 0;     // where an added token begins in the text
      size_t token = 0;    // how many tokens are before it
      size_t decided = 0;  // the cut holds for every text with the same bytes before this one
    };
    std::vector<int32_t> ids;
    std::vector<Cut> cuts;   // in order
    size_t known_bytes = 0;  // of the text: those before the cut from which on it was encoded
  };
  // Returns what Encode returns, without encoding a beginning that is known: `text` has its first
  // `common` bytes, with the same parts in `split`, in common with the text that `earlier` is of.
  // An added token that these bytes decide ends what is before it, whatever follows, and begins
  // what is encoded alone. REQUIRES: `earlier` was made with the same `add_special_tokens`, and had
  // a `split` that was empty if this one is, and else not; or `common` is 0.
  absl::StatusOr<Encoded> EncodeOnward(absl::string_view text, bool add_special_tokens,
                                       absl::Span<const ByteRange> split, const Encoded& earlier,
                                       size_t common) const;

  // Returns the last place in `text` where it can be cut whatever follows it: for every `more`, the
  // tokens of text + more are those of text[0, cut), with add_special_tokens as for the whole, and
  // then those of text[cut, end) + more without. 0: no such place is known. It is a line's first
  // letter, with pre-tokenizers of which no word has a letter behind a line's end; not known for
  // tokenizers with other pre-tokenizers, with a post-processor that appends tokens, or with
  // normalizers other than Unicode forms.
  size_t LastCut(absl::string_view text) const;

  // Returns the text of `ids`; bytes that are not UTF-8 become U+FFFD. INVALID_ARGUMENT, reason
  // "UNKNOWN_TOKEN", with the first id that is no token. To decode a text as it grows, use
  // IncrementalDetokenizer.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  int vocab_size() const;  // highest id + 1, added tokens included; there may be gaps
  std::optional<int32_t> TokenToId(absl::string_view token) const;
  std::optional<std::string> IdToToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;  // false for unknown ids
  // True if Decode leaves the token out with skip_special_tokens; false for unknown ids.
  bool IsSkipped(int32_t id) const;

  // How many special tokens `add_special_tokens` puts before and after a text.
  struct AddedTokenCounts {
    int before = 0;
    int after = 0;
  };
  AddedTokenCounts added_special_tokens() const;

  // What the token adds to a text in the middle of it, if it is not skipped: bytes, which may be a
  // part of a character. nullopt for ids without a token.
  std::optional<std::string> BytesOf(int32_t id) const;
  // Returns BytesOf for all ids; it is empty for special tokens, and for ids without a token.
  // UNIMPLEMENTED, reason "BAD_TOKENIZER", if the decoders make a token's text depend on other
  // tokens than the first.
  absl::StatusOr<std::vector<std::string>> TokenBytes() const;

  // XXH3-64 of the bytes of tokenizer.json, or of what a GGUF file has in its place.
  uint64_t fingerprint() const;

 private:
  friend class IncrementalDetokenizer;
  friend class TokenPositions;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  // Returns the last cut of `earlier` that holds for every text with the same first `common` bytes;
  // null if no cut does.
  const Encoded::Cut* LastDecidedCut(const Encoded& earlier, size_t common) const;
  // Appends the tokens of the text from the byte `begin` on, which is 0 or a cut, and the cuts.
  absl::Status EncodeText(absl::string_view text, size_t begin, absl::Span<const ByteRange> split,
                          Encoded* encoded) const;
  // The tokens of `ids` as the decoders see them, less the special ones if they are to be skipped.
  absl::StatusOr<std::vector<absl::string_view>> TokensToDecode(absl::Span<const int32_t> ids,
                                                                bool skip_special_tokens) const;
  // The token as the decoders see it; nullopt for ids without a token.
  std::optional<absl::string_view> TokenToDecode(int32_t id) const;

  const std::unique_ptr<const Parts> parts_;
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_TOKENIZER_H_
