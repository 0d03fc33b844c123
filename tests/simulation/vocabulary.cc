#include "tests/simulation/vocabulary.h"

#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/simulation/hash_engine.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::simulation {

const tokenizer::Tokenizer& HashTokenizer() {
  static const auto* const tokenizer = [] {
    constexpr size_t kWords = kVocab - testing::kTinyVocabSize;
    // "aa", "ab", … "dd", "aaa", …: a word is a shorter one and a letter.
    std::vector<std::string> words;
    for (const char first : kLetters) {
      for (const char second : kLetters) words.push_back({first, second});
    }
    for (size_t shorter = 0; words.size() < kWords; ++shorter) {
      for (const char letter : kLetters) words.push_back(words[shorter] + letter);
    }
    words.resize(kWords);
    auto loaded =
        tokenizer::Tokenizer::FromJson(testing::TinyTokenizerJson(words), "the simulation");
    BATON_CHECK(loaded.ok()) << loaded.status();
    BATON_CHECK_EQ((*loaded)->vocab_size(), kVocab);
    return loaded->release();
  }();
  return *tokenizer;
}

}  // namespace baton::simulation
