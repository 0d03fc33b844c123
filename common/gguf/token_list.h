// The tokens that a file lists: their texts and types by id.
#ifndef BATON_COMMON_GGUF_TOKEN_LIST_H_
#define BATON_COMMON_GGUF_TOKEN_LIST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/gguf/file.h"

namespace baton::gguf {

// A file without it has no tokenizer.
inline constexpr char kTokenizerModelKey[] = "tokenizer.ggml.model";
// Its values that Baton reads.
inline constexpr absl::string_view kByteLevelModel = "gpt2";
inline constexpr absl::string_view kSentencePieceModel = "llama";
inline constexpr absl::string_view kGemma4Model = "gemma4";

inline constexpr absl::string_view kTokensKey = "tokenizer.ggml.tokens";
inline constexpr absl::string_view kTokenTypesKey = "tokenizer.ggml.token_type";
inline constexpr absl::string_view kMergesKey = "tokenizer.ggml.merges";

// The format's types of tokens, which are SentencePiece's.
enum TokenType : int64_t {
  kNormalToken = 1,
  kUnknownToken = 2,
  kControlToken = 3,
  kUserDefinedToken = 4,
  kUnusedToken = 5,
  kByteToken = 6,
};

struct Token {
  uint64_t id = 0;
  absl::string_view text;  // UTF-8, not empty; as long as the file
  TokenType type = kNormalToken;
};

// "KEY[INDEX]", as messages name an element of a list.
std::string Element(absl::string_view key, uint64_t index);

// The list, of at most 64 MiB; INVALID_ARGUMENT without it.
absl::StatusOr<Texts> RequiredTexts(const File& file, absl::string_view key);

// Visits each token that has a text, in the order of ids, up to the first error. INVALID_ARGUMENT
// or UNIMPLEMENTED, naming key and place, for what is not as the format says.
absl::Status ForEachToken(const File& file, absl::FunctionRef<absl::Status(const Token&)> visit);

// The id and the text of the token that `key` names; nullopt without the key. INVALID_ARGUMENT if
// no token has that id: unused ones are none.
absl::StatusOr<std::optional<std::pair<int64_t, std::string>>> TokenOf(const File& file,
                                                                       absl::string_view key);

// The list of merges, as tokenizer.json has it. INVALID_ARGUMENT without it, and for a merge that
// is no UTF-8.
absl::StatusOr<std::string> ListedMergesJson(const File& file);

// Appends an entry of tokenizer.json's added_tokens, with a comma before all but the first. All but
// user-defined tokens are special. With `rstrip`, it takes the white space behind it.
void AppendAddedToken(const Token& token, absl::string_view content, bool rstrip,
                      std::string* entries);

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_TOKEN_LIST_H_
