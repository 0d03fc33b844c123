// The committed corpora, and a few mutations of them: what is broken for good is seen without
// libFuzzer. scripts/fuzz searches for new inputs.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/seed.h"

namespace baton::fuzz {
namespace {

constexpr size_t kMutations = 2'000;

class FuzzTest : public ::testing::TestWithParam<FuzzTarget> {};

std::string Mutate(std::string input, const std::vector<std::string>& inputs,
                   std::mt19937& random) {
  const auto below = [&random](size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random);
  };
  for (size_t edits = 1 + below(4); edits > 0; --edits) {
    const size_t at = below(input.size() + 1);
    switch (below(5)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(below(256));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 2:
        input.erase(at, below(8) + 1);
        break;
      case 3:
        input.insert(at, input, below(input.size() + 1), below(32));
        break;
      default: {
        const std::string& other = inputs[below(inputs.size())];
        input.insert(at, other, below(other.size() + 1), below(64));
      }
    }
  }
  return input;
}

TEST_P(FuzzTest, CorpusAndMutationsBreakNoPromise) {
  std::vector<std::string> inputs = ReadCorpus(absl::StrCat("tests/fuzz/corpus/", GetParam().name));
  inputs.insert(inputs.end(), GetParam().seeds.begin(), GetParam().seeds.end());
  GetParam().run("");
  for (const std::string& input : inputs) GetParam().run(input);
  std::mt19937 random(testing::TestSeed());
  for (size_t i = 0; i < kMutations; ++i) {
    GetParam().run(Mutate(inputs[i % inputs.size()], inputs, random));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, ::testing::ValuesIn(Targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace baton::fuzz
