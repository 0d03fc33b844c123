#include "common/tokenizer/token_positions.h"

#include <optional>

#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/tokenizer_parts.h"

namespace baton::tokenizer {

TokenPositions::TokenPositions(const Tokenizer& tokenizer, TextPosition position)
    : tokenizer_(tokenizer),
      byte_level_(Has<DecodeByteLevel>(tokenizer.parts_->pipeline)),
      byte_fallback_(Has<DecodeByteFallback>(tokenizer.parts_->pipeline)),
      stream_(tokenizer.parts_->pipeline, position) {}

void TokenPositions::Append(int32_t id, bool hidden, std::vector<int64_t>* begins) {
  const std::optional<absl::string_view> token =
      hidden ? std::nullopt : tokenizer_.TokenToDecode(id);
  if (!token) {
    if (run_.empty()) {
      begins->push_back(characters_);
    } else {
      in_run_.push_back(run_.size());
    }
    return;
  }
  if (byte_level_) return AppendBytes(*token, begins);
  const std::optional<char> byte = byte_fallback_ ? ByteOfToken(*token) : std::nullopt;
  const int64_t run_characters = byte ? 0 : EndRun(begins);
  std::string text;  // includes the run's text, if the run has ended
  // If a Replace decoder's pattern gives up, the text has nothing of this token either.
  if (!stream_.Push(*token, &text).ok()) text.clear();
  if (byte) {
    in_run_.push_back(run_.size());
    run_.push_back(*byte);
    return;
  }
  begins->push_back(characters_ + run_characters);
  characters_ += CountCharacters(text);
}

void TokenPositions::AppendBytes(absl::string_view token, std::vector<int64_t>* begins) {
  std::string bytes, text;
  if (!AppendNamedBytes(token, &bytes)) bytes = std::string(token);
  // A byte that does not continue a broken character comes after its U+FFFD.
  if (!bytes.empty() && !held_.Continues(static_cast<unsigned char>(bytes[0]))) {
    held_.Finish(&text);
  }
  begins->push_back(characters_ + CountCharacters(text));
  held_.Append(bytes, &text);
  characters_ += CountCharacters(text);
}

// Returns the run's characters: those of its bytes, or one for each byte if they are not UTF-8.
int64_t TokenPositions::EndRun(std::vector<int64_t>* begins) {
  const bool valid = IsUtf8(run_);
  std::vector<int64_t> character(run_.size() + 1);  // the character of each byte, and of the end
  int64_t count = 0;
  for (size_t i = 0; i < run_.size(); ++i) {
    count += !valid || (static_cast<unsigned char>(run_[i]) & 0xC0) != 0x80;
    character[i] = count - 1;
  }
  character[run_.size()] = count;
  for (const size_t at : in_run_) begins->push_back(characters_ + character[at]);
  in_run_.clear();
  run_.clear();
  return count;
}

void TokenPositions::Finish(std::vector<int64_t>* begins) { EndRun(begins); }

}  // namespace baton::tokenizer
