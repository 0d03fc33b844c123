#include "common/grammar/reasoning_phase.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "tests/testing/seed.h"

namespace baton::grammar {
namespace {

using State = ReasoningPhase::State;

// Tokens by their numbers.
const ReasoningVocabulary& Tokens() {
  static const auto* const tokens =
      new ReasoningVocabulary{{"a", "b", "ab", "aba", "\n", "", "<s>", "ba", "<t>"},
                              {false, false, false, false, false, false, true, false, true}};
  return *tokens;
}

TEST(ReasoningPhaseTest, TextsHaveBounds) {
  EXPECT_EQ(CheckReasoning({"", "x"}), absl::OkStatus());
  EXPECT_EQ(CheckReasoning({std::string(256, 'x'), std::string(256, 'x')}), absl::OkStatus());
  for (const auto& [reasoning, field] : std::vector<std::pair<GrammarSpec::Reasoning, std::string>>{
           {{"", ""}, "end"},
           {{"\xff", "x"}, "begin"},
           {{std::string(257, 'x'), "x"}, "begin"},
           {{"", std::string(257, 'x')}, "end"}}) {
    const absl::Status status = CheckReasoning(reasoning);
    EXPECT_EQ(ErrorField(status), absl::StrCat("structured_output.reasoning.", field)) << status;
  }
}

// What After says of random tokens is what a search in the text says.
TEST(ReasoningPhaseTest, TheFirstOccurrenceOfTheEndEndsTheReasoning) {
  std::mt19937 random(testing::TestSeed(71));
  for (const std::string end : {"a", "ab", "aab", "abab", "ababb", "b\nab", "aaaa"}) {
    ReasoningPhase phase({"", end}, Tokens());
    for (int i = 0; i < 300; ++i) {
      std::string text;
      State state = phase.Start();
      for (int n = 0; n < 40 && state.place == State::Place::kReasoning; ++n) {
        const auto token = static_cast<int32_t>(random() % Tokens().texts.size());
        const std::string longer = text + Tokens().texts[static_cast<size_t>(token)];
        const size_t at = longer.find(end);
        const bool ends = at != std::string::npos && at + end.size() == longer.size();
        const bool comes = longer.size() > text.size() &&
                           !Tokens().special[static_cast<size_t>(token)] &&
                           (at == std::string::npos || ends);
        const std::vector<uint32_t>& mask = phase.Mask(state);
        ASSERT_EQ((mask[0] >> token & 1) != 0, comes) << text << " + " << token;
        const auto after = phase.After(state, token);
        ASSERT_EQ(after.has_value(), comes) << text << " + " << token;
        if (!comes) continue;
        text = longer;
        state = *after;
        ASSERT_EQ(state.place == State::Place::kSpace, ends) << text;
      }
    }
  }
}

TEST(ReasoningPhaseTest, ASpecialTokenOfTheEndDecides) {
  ReasoningPhase phase({"<t>", "<s>ab<t>"}, Tokens());
  State state = phase.Start();
  const auto mask = [&] { return phase.Mask(state)[0]; };
  const auto take = [&](int32_t token) { state = phase.After(state, token).value(); };
  EXPECT_EQ(mask(), 1u << 8);
  take(8);
  EXPECT_EQ(mask(), 0b0'1101'1111u) << "all that has a text, but <t>";
  take(2);
  take(6);
  EXPECT_EQ(mask(), 0b101u) << "a or ab";
  take(0);
  EXPECT_EQ(mask(), 0b10u);
  take(1);
  EXPECT_EQ(mask(), 1u << 8);
  take(8);
  EXPECT_EQ(state.place, State::Place::kSpace);
  for (int i = 0; i < kMaxWhitespace; ++i) {
    EXPECT_EQ(mask(), 1u << 4) << i;
    take(4);
  }
  EXPECT_EQ(mask(), 0u);
}

}  // namespace
}  // namespace baton::grammar
