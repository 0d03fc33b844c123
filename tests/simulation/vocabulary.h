// The text behind the hash model's tokens: a real tokenizer, whose words are few letters long and
// of few letters, so that stop strings begin often, end often, and span tokens.
#ifndef BATON_TESTS_SIMULATION_VOCABULARY_H_
#define BATON_TESTS_SIMULATION_VOCABULARY_H_

#include "common/tokenizer/tokenizer.h"

namespace baton::simulation {

// What words are made of.
constexpr char kLetters[] = {'a', 'b', 'c', 'd'};

// kVocab tokens: the bytes, the end of an answer (testing::kEndToken), then words.
const tokenizer::Tokenizer& HashTokenizer();

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_VOCABULARY_H_
