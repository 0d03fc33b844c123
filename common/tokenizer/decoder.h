// Runs the decoders of a Pipeline on a stream of tokens, in time linear in the tokens. Whole texts
// are decoded by the same code, as a stream that ends at once, so the two never differ.
#ifndef BATON_COMMON_TOKENIZER_DECODER_H_
#define BATON_COMMON_TOKENIZER_DECODER_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/pipeline.h"

namespace baton::tokenizer {

// Where the stream's first token is in the text.
enum class TextPosition {
  kStart,         // it starts the text
  kContinuation,  // text, such as a prompt's, came before it
};

// The byte of a token such as "<0x41>"; nullopt for tokens that DecodeByteFallback does not make a
// byte.
std::optional<char> ByteOfToken(absl::string_view token);

// One decoder in the chain. Each token arrives in one or more pieces; the step passes on the text
// that is certain. Not thread-safe.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  // Takes more text of the current token.
  virtual absl::Status Text(absl::string_view text) = 0;
  virtual absl::Status EndToken() = 0;
  // Ends the stream of tokens. Called once, last.
  virtual absl::Status Finish() = 0;
};

// One per stream. Not thread-safe.
class DecodeStream {
 public:
  // `pipeline` outlives the stream.
  DecodeStream(const Pipeline& pipeline, TextPosition position);
  ~DecodeStream();

  // Appends to `out` the text that becomes certain with `token`; whole characters only.
  // INVALID_ARGUMENT if a Replace decoder's pattern gives up, see Matcher::ForEachMatch.
  absl::Status Push(absl::string_view token, std::string* out);
  // Appends the rest of the text. Nothing may be pushed after it.
  absl::Status Finish(std::string* out);

 private:
  void Take(std::string* out);

  std::string ready_;                 // what the last step has passed on
  std::unique_ptr<DecodeStep> head_;  // owns the steps after it
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_DECODER_H_
