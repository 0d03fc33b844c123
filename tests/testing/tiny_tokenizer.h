// The smallest tokenizer that can say everything: one token per byte, whose id is the byte, and one
// special token. Made here, so that tests need no file.
#ifndef BATON_TESTS_TESTING_TINY_TOKENIZER_H_
#define BATON_TESTS_TESTING_TINY_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

namespace baton::testing {

inline constexpr int32_t kEndToken = 256;  // "<|end|>"
inline constexpr int kTinyVocabSize = 257;

// `words`, of printable ASCII, are further tokens, from kTinyVocabSize on. No text is encoded with
// them, as there are no merges.
std::string TinyTokenizerJson(const std::vector<std::string>& words = {});

// Writes tokenizer.json into `dir`, which is made.
void WriteTinyTokenizer(const std::string& dir);

// The ids of a text, without the tokenizer.
std::vector<int32_t> Ids(const std::string& text);

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_TINY_TOKENIZER_H_
