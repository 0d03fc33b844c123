// Tokenizer::TokenBytes.
#include <optional>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_parts.h"

namespace baton::tokenizer {
namespace {

template <class Kind>
bool Has(const Pipeline& pipeline) {
  for (const Decoder& decoder : pipeline.decoders) {
    if (std::holds_alternative<Kind>(decoder)) return true;
  }
  return false;
}

// The text of tokens in the middle of an answer.
absl::StatusOr<std::string> Decoded(const Pipeline& pipeline,
                                    std::initializer_list<absl::string_view> tokens) {
  DecodeStream stream(pipeline, TextPosition::kContinuation);
  std::string text;
  for (const absl::string_view token : tokens) BATON_RETURN_IF_ERROR(stream.Push(token, &text));
  BATON_RETURN_IF_ERROR(stream.Finish(&text));
  return text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Tokenizer::TokenBytes() const {
  const Pipeline& pipeline = parts_->pipeline;
  const bool byte_level = Has<DecodeByteLevel>(pipeline);
  const bool byte_fallback = Has<DecodeByteFallback>(pipeline);
  const absl::Status unsupported =
      MakeError(absl::StatusCode::kUnimplemented, "BAD_TOKENIZER",
                "structured output: this tokenizer's tokens have no bytes of their own");
  // Bytes are certain only if nothing follows that sees text.
  if (byte_level && pipeline.decoders.size() != 1) return unsupported;
  if (Has<StripChars>(pipeline) && !Has<Fuse>(pipeline)) return unsupported;
  if (pipeline.decoder_absent) return unsupported;
  std::vector<std::string> bytes(static_cast<size_t>(vocab_size()));
  for (int32_t id = 0; id < vocab_size(); ++id) {
    std::string& text = bytes[static_cast<size_t>(id)];
    const auto added = parts_->added_by_id.find(id);
    const std::string* const in_model = parts_->bpe.vocabulary().Token(id);
    absl::string_view token;
    if (added != parts_->added_by_id.end()) {
      if (added->second->special) continue;
      token = added->second->pattern;
    } else if (in_model != nullptr) {
      token = *in_model;
    } else {
      continue;
    }
    if (byte_level) {
      if (!AppendNamedBytes(token, &text)) text = std::string(token);
    } else if (uint32_t byte; byte_fallback && token.size() == 6 &&
                              absl::StartsWith(token, "<0x") &&
                              absl::SimpleHexAtoi(token.substr(3, 2), &byte)) {
      text.push_back(static_cast<char>(byte));
    } else {
      BATON_ASSIGN_OR_RETURN(text, Decoded(pipeline, {token}));
    }
  }
  return bytes;
}

}  // namespace baton::tokenizer
