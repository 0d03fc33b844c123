// Tokenizer::BytesOf and TokenBytes.
#include <optional>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_parts.h"

namespace baton::tokenizer {
namespace {

// The text of a token in the middle of an answer.
absl::StatusOr<std::string> Decoded(const Pipeline& pipeline, absl::string_view token) {
  DecodeStream stream(pipeline, TextPosition::kContinuation);
  std::string text;
  BATON_RETURN_IF_ERROR(stream.Push(token, &text));
  BATON_RETURN_IF_ERROR(stream.Finish(&text));
  return text;
}

}  // namespace

std::optional<std::string> Tokenizer::BytesOf(int32_t id) const {
  const Pipeline& pipeline = parts_->pipeline;
  const std::optional<absl::string_view> token = TokenToDecode(id);
  if (!token) return std::nullopt;
  if (Has<DecodeByteLevel>(pipeline)) {
    std::string bytes;
    if (!AppendNamedBytes(*token, &bytes)) bytes = std::string(*token);
    return bytes;
  }
  const std::optional<char> byte =
      Has<DecodeByteFallback>(pipeline) ? ByteOfToken(*token) : std::nullopt;
  if (byte) return std::string(1, *byte);
  absl::StatusOr<std::string> text = Decoded(pipeline, *token);
  // A Replace decoder's pattern has given up: no text comes of the token, in no context.
  return text.ok() ? *std::move(text) : std::string();
}

absl::StatusOr<std::vector<std::string>> Tokenizer::TokenBytes() const {
  const Pipeline& pipeline = parts_->pipeline;
  const absl::Status unsupported =
      MakeError(absl::StatusCode::kUnimplemented, "BAD_TOKENIZER",
                "structured output: this tokenizer's tokens have no bytes of their own");
  // Bytes are certain only if nothing follows that sees text.
  if (Has<DecodeByteLevel>(pipeline) && pipeline.decoders.size() != 1) return unsupported;
  if (Has<StripChars>(pipeline) && !Has<Fuse>(pipeline)) return unsupported;
  if (pipeline.decoder_absent) return unsupported;
  std::vector<std::string> bytes(static_cast<size_t>(vocab_size()));
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (!IsSpecial(id)) bytes[static_cast<size_t>(id)] = BytesOf(id).value_or("");
  }
  return bytes;
}

}  // namespace baton::tokenizer
