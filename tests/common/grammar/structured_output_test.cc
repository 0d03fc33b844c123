// Masks against languages that are listed in full, and processes that hang, crash and are killed.
#include "common/grammar/structured_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/json/json.h"
#include "tests/testing/seed.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::grammar {
namespace {

using Kind = GrammarSpec::Kind;
using Mask = StructuredOutput::Mask;
using testing::Ids;
using testing::kEndToken;
using testing::kTinyVocabSize;

const std::vector<std::string>& Words() {
  static const auto* const words = new std::vector<std::string>{
      "ab", "abc", "cd", "bcd", "dd", "true", "yes", "no", "es", "12", "],", "{}"};
  return *words;
}

std::string TokenText(int id) {
  if (id < 256) return std::string(1, static_cast<char>(id));
  if (id == kEndToken) return "";
  return Words()[static_cast<size_t>(id - kTinyVocabSize)];
}

int TokenCount() { return kTinyVocabSize + static_cast<int>(Words().size()); }

bool Bit(const Mask& mask, int id) {
  return (mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1) != 0;
}

// Returns when the process has stopped.
void StopProcess(pid_t pid) {
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
}

class StructuredOutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "/structured_output_test";
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ + "/tokenizer.json") << testing::TinyTokenizerJson(Words());
    Start(StructuredOutputOptions());
  }
  void Start(StructuredOutputOptions options) {
    options.process.program = BATON_BIN_DIR "/baton-grammar";
    options.process.model_dir = dir_;
    options.process.token_count = TokenCount();
    options.process.end_token_ids = {kEndToken};
    output_ = std::make_unique<StructuredOutput>(std::move(options));
  }
  StructuredOutput::Compiled Compile(GrammarSpec spec) {
    std::promise<StructuredOutput::Compiled> done;
    output_->Compile(/*id=*/0, std::move(spec),
                     [&](StructuredOutput::Compiled c) { done.set_value(c); });
    return done.get_future().get();
  }
  std::future<StructuredOutput::Compiled> StartToCompile(uint64_t id, const std::string& choice) {
    auto done = std::make_shared<std::promise<StructuredOutput::Compiled>>();
    output_->Compile(id, {Kind::kChoices, {choice}},
                     [done](StructuredOutput::Compiled c) { done->set_value(c); });
    return done->get_future();
  }
  std::shared_ptr<const CompiledGrammar> Grammar(GrammarSpec spec) {
    StructuredOutput::Compiled compiled = Compile(std::move(spec));
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return compiled.ok() ? *compiled : nullptr;
  }
  absl::StatusOr<Mask> MaskOf(uint64_t session, const CompiledGrammar& grammar,
                              const std::vector<int32_t>& tokens) {
    auto masks = output_->Masks({{.session = session, .grammar = &grammar, .tokens = tokens}})[0];
    if (!masks.ok()) return masks.status();
    return masks->front();
  }

  std::string dir_;
  std::unique_ptr<StructuredOutput> output_;
};

// Random answers of a language that is given as the set of its texts: each mask has a token if and
// only if some text goes on with it, and the end token if and only if the answer is a text.
void CheckLanguage(StructuredOutput& output, const CompiledGrammar& grammar,
                   const std::set<std::string>& texts, uint32_t stream) {
  std::mt19937 random(testing::TestSeed(stream));
  for (uint64_t session = 1; session <= 20; ++session) {
    std::vector<int32_t> tokens;
    std::string answer;
    for (;;) {
      // Drafts are any tokens, and change no mask.
      std::vector<int32_t> drafts(random() % 4);
      for (int32_t& draft : drafts) draft = static_cast<int32_t>(random() % TokenCount());
      const auto masks = output.Masks({{session, &grammar, tokens, drafts}})[0];
      ASSERT_TRUE(masks.ok()) << masks.status();
      const auto* const mask = &masks->front();
      std::vector<int32_t> allowed;
      for (int id = 0; id < TokenCount(); ++id) {
        bool expected = id == kEndToken && texts.contains(answer);
        if (id != kEndToken) {
          const std::string longer = answer + TokenText(id);
          const auto after = texts.lower_bound(longer);
          expected = after != texts.end() && absl::StartsWith(*after, longer);
        }
        ASSERT_EQ(Bit(*mask, id), expected) << "after '" << answer << "' token " << id;
        if (expected) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty());
      const int32_t token = allowed[random() % allowed.size()];
      if (token == kEndToken) break;
      tokens.push_back(token);
      answer += TokenText(token);
    }
    output.Close(session);
  }
}

TEST_F(StructuredOutputTest, MasksBehindDraftsAreThoseOfTheAnswerWithThem) {
  std::mt19937 random(testing::TestSeed(17));
  GrammarSpec reasoned = {Kind::kRegex, {"(ab|a)(cd|c){1,9}"}};
  reasoned.reasoning = GrammarSpec::Reasoning{.begin = "yes", .end = "no"};
  uint64_t session = 0, plain = 1000;
  EXPECT_TRUE(MaskOf(++plain, *Grammar({Kind::kChoices, {"a"}}), {}).ok());
  const pid_t process = output_->mask_pid();
  for (const GrammarSpec& spec : {GrammarSpec{Kind::kRegex, {"(ab|a)(cd|c){1,9}"}},
                                  GrammarSpec{Kind::kJsonObject, {}}, reasoned}) {
    const auto grammar = Grammar(spec);
    ASSERT_NE(grammar, nullptr);
    int behind_drafts = 0, refused = 0;
    const auto any_of = [&](const Mask& mask) {
      std::vector<int32_t> allowed;
      for (int id = 0; id < TokenCount(); ++id) {
        if (Bit(mask, id)) allowed.push_back(id);
      }
      return allowed.empty() ? 'x' : allowed[random() % allowed.size()];
    };
    for (int answer = 0; answer < 10; ++answer) {
      ++session;
      std::vector<int32_t> tokens;
      while (tokens.size() < 24 && (tokens.empty() || tokens.back() != kEndToken)) {
        // Drafts that follow, perhaps with one among them that does not, and what they would have
        // as masks if they were tokens.
        std::vector<int32_t> with = tokens, drafts(random() % 5);
        std::vector<absl::StatusOr<Mask>> expected = {MaskOf(++plain, *grammar, with)};
        output_->Close(plain);
        for (int32_t& draft : drafts) {
          draft = random() % 6 == 0 || !expected.back().ok() ? 'x' : any_of(*expected.back());
          with.push_back(draft);
          expected.push_back(MaskOf(++plain, *grammar, with));
          output_->Close(plain);
        }
        const auto masks = output_->Masks({{session, grammar.get(), tokens, drafts}})[0];
        ASSERT_TRUE(masks.ok()) << masks.status();
        ASSERT_LE(masks->size(), drafts.size() + 1);
        for (size_t i = 0; i < masks->size(); ++i) {
          if (i > 0 && !expected[i].ok()) {  // at the end, nothing follows
            ASSERT_EQ((*masks)[i], Mask((*masks)[i].size(), 0));
            continue;
          }
          ASSERT_EQ((*masks)[i], *expected[i]) << "behind " << i << " drafts";
        }
        behind_drafts += static_cast<int>(masks->size()) - 1;
        refused += masks->size() <= drafts.size() ? 1 : 0;
        tokens.push_back(any_of(masks->front()));
      }
      output_->Close(session);
    }
    EXPECT_GT(behind_drafts, 20);
    EXPECT_GT(refused, 0);
  }
  EXPECT_EQ(output_->mask_pid(), process) << "a draft has ended the process";
}

TEST_F(StructuredOutputTest, ReasoningThatThePromptHasBegunIsNotSkipped) {
  GrammarSpec spec = {Kind::kRegex, {"a?"}};
  for (const bool begun : {false, true}) {
    spec.reasoning = GrammarSpec::Reasoning{.begin = begun ? "" : "yes", .end = "n"};
    const uint64_t session = begun ? 2 : 1;
    const auto grammar = Grammar(spec);
    ASSERT_NE(grammar, nullptr);
    const auto first = MaskOf(session, *grammar, {});
    ASSERT_TRUE(first.ok()) << first.status();
    // The constrained part could be empty: only where no reasoning has begun may the answer end.
    EXPECT_EQ(Bit(*first, kEndToken), !begun);
    EXPECT_TRUE(Bit(*first, 'a'));
    EXPECT_EQ(Bit(*first, 'x'), begun);
    output_->Close(session);
    if (!begun) continue;
    const auto after = MaskOf(session + 1, *grammar, {'x', 'n'});
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_TRUE(Bit(*after, kEndToken));
    EXPECT_FALSE(Bit(*after, 'x'));
    output_->Close(session + 1);
  }
}

TEST_F(StructuredOutputTest, ChoicesAllowExactlyTheirTokens) {
  const std::vector<std::string> choices = {"yes", "no", "n\"o\\\n", "yes, naïve", "nothing"};
  CheckLanguage(*output_, *Grammar({Kind::kChoices, choices}), {choices.begin(), choices.end()},
                11);
}

TEST_F(StructuredOutputTest, ARegexAllowsExactlyItsTokens) {
  for (const char* const regex :
       {"(ab|a)c{1,2}d?", "a?b?c?d?", "(?:ab|cd){2}|d+?a", "[^abcd]?[a-c]", "^(b|bc|bcd)d{0,2}$"}) {
    SCOPED_TRACE(regex);
    // All texts of up to seven of the letters; what is longer cannot be listed.
    std::set<std::string> texts;
    std::vector<std::string> level = {""};
    const std::regex matcher(regex);
    bool bounded = !absl::StrContains(regex, "+") && !absl::StrContains(regex, "[^");
    for (int length = 0; length <= 7; ++length) {
      std::vector<std::string> next;
      for (const std::string& text : level) {
        if (std::regex_match(text, matcher)) texts.insert(text);
        for (const char letter : {'a', 'b', 'c', 'd'}) next.push_back(text + letter);
      }
      level = std::move(next);
    }
    const auto grammar = Grammar({Kind::kRegex, {regex}});
    if (bounded) {
      CheckLanguage(*output_, *grammar, texts, 12);
      continue;
    }
    for (const std::string& text : texts) {
      std::vector<int32_t> tokens = Ids(text);
      const absl::StatusOr<Mask> mask = MaskOf(1, *grammar, tokens);
      ASSERT_TRUE(mask.ok()) << text << mask.status();
      EXPECT_TRUE(Bit(*mask, kEndToken)) << text;
      output_->Close(1);
    }
  }
}

TEST_F(StructuredOutputTest, RandomAnswersOfSchemasAreJson) {
  const char* const schemas[] = {
      R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "integer",
          "minimum": 3, "maximum": 12}}, "required": ["a", "b"], "additionalProperties": false})",
      R"({"type": "array", "items": {"enum": ["x", null, 1]}, "minItems": 1, "maxItems": 3})"};
  std::mt19937 random(testing::TestSeed(13));
  for (const char* const schema : schemas) {
    const auto grammar = Grammar({Kind::kJsonSchema, {schema}});
    for (uint64_t session = 1; session <= 20; ++session) {
      std::vector<int32_t> tokens;
      std::string answer;
      for (;;) {
        ASSERT_LT(tokens.size(), 2000u);
        const absl::StatusOr<Mask> mask = MaskOf(session, *grammar, tokens);
        ASSERT_TRUE(mask.ok()) << mask.status();
        std::vector<int32_t> allowed;
        for (int id = 0; id < TokenCount(); ++id) {
          if (Bit(*mask, id)) allowed.push_back(id);
        }
        const int32_t token = allowed[random() % allowed.size()];
        if (token == kEndToken) break;
        tokens.push_back(token);
        answer += TokenText(token);
      }
      output_->Close(session);
      const absl::StatusOr<json::Value> value = json::Parse(answer, "answer");
      ASSERT_TRUE(value.ok()) << answer << value.status();
      if (const json::Value* b = value->Find("b")) {
        EXPECT_EQ(value->items.size(), 2u) << answer;
        EXPECT_GE(b->scalar.integer, 3) << answer;
        EXPECT_LE(b->scalar.integer, 12) << answer;
        EXPECT_EQ(value->Find("a")->scalar.kind, json::Scalar::Kind::kBool) << answer;
      } else {
        EXPECT_EQ(value->kind, json::Value::Kind::kArray) << answer;
        EXPECT_GE(value->items.size(), 1u) << answer;
        EXPECT_LE(value->items.size(), 3u) << answer;
      }
    }
  }
}

// Answers that go on elsewhere, are asked for twice, or in another order.
TEST_F(StructuredOutputTest, AMaskDependsOnTheTokensAlone) {
  const auto grammar = Grammar({Kind::kRegex, {"(ab|cd)+(yes|no)"}});
  const std::vector<int32_t> whole = Ids("abcdcdabn");
  std::vector<Mask> stepwise;
  for (size_t count = 0; count <= whole.size(); ++count) {
    stepwise.push_back(*MaskOf(1, *grammar, {whole.begin(), whole.begin() + count}));
  }
  for (size_t count = 0; count <= whole.size(); ++count) {
    const std::vector<int32_t> tokens(whole.begin(), whole.begin() + count);
    EXPECT_EQ(*MaskOf(100 + count, *grammar, tokens), stepwise[count]) << count;
    EXPECT_EQ(*MaskOf(100 + count, *grammar, tokens), stepwise[count]) << count;
  }
  const absl::Status wrong = MaskOf(300, *grammar, Ids("abx")).status();
  EXPECT_EQ(ErrorReason(wrong), "GRAMMAR_MISMATCH") << wrong;
}

TEST_F(StructuredOutputTest, KilledProcessesAreReplacedAndNoMaskChanges) {
  const auto grammar = Grammar({Kind::kChoices, {"abcd", "abyes"}});
  const std::vector<int32_t> tokens = Ids("ab");
  const Mask before = *MaskOf(1, *grammar, tokens);
  for (int round = 0; round < 2; ++round) {
    const pid_t masker = output_->mask_pid(), compiler = output_->compiling_pid();
    kill(masker, SIGKILL);
    kill(compiler, SIGKILL);
    EXPECT_EQ(*MaskOf(1, *grammar, tokens), before);
    EXPECT_NE(output_->mask_pid(), masker);
    ASSERT_NE(Grammar({Kind::kChoices, {absl::StrCat("other", round)}}), nullptr);
    EXPECT_NE(output_->compiling_pid(), compiler);
  }
}

// A machine that stalls must not end an answer. The limits are what a fresh process may take on a
// crowded one.
TEST_F(StructuredOutputTest, AStoppedCompilerIsReplaced) {
  StructuredOutputOptions options;
  options.compile_limit = absl::Seconds(5);
  Start(options);
  ASSERT_NE(Grammar({Kind::kChoices, {"ab"}}), nullptr);
  const pid_t stopped = output_->compiling_pid();
  StopProcess(stopped);
  EXPECT_NE(Grammar({Kind::kChoices, {"cd"}}), nullptr);
  EXPECT_NE(output_->compiling_pid(), stopped);
}

TEST_F(StructuredOutputTest, AStoppedMaskProcessIsReplacedAndNoMaskChanges) {
  const auto grammar = Grammar({Kind::kChoices, {"abcd", "cdab"}});
  const std::vector<int32_t> first = Ids("ab"), second = Ids("cd");
  const std::vector<StructuredOutput::Item> items = {{1, grammar.get(), first},
                                                     {2, grammar.get(), second}};
  const auto expected = output_->Masks(items);
  const pid_t stopped = output_->mask_pid();
  StopProcess(stopped);
  const auto masks = output_->Masks(items);
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(masks[i].ok()) << masks[i].status();
    EXPECT_EQ(*masks[i], *expected[i]);
  }
  EXPECT_NE(output_->mask_pid(), stopped);
}

// A grammar that takes seconds of the processor to compile, at each attempt.
GrammarSpec SlowToCompile() {
  std::string regex = "(a|b)*a";
  for (int i = 0; i < 10; ++i) absl::StrAppend(&regex, "((a|b){1,1000}c?){1,1000}");
  return {Kind::kRegex, {regex}};
}

TEST_F(StructuredOutputTest, ACompilerThatNeverAnswersCostsOneRequestAnError) {
  StructuredOutputOptions options;
  options.compile_limit = absl::Milliseconds(1);
  options.process.compile_cpu_limit = absl::Minutes(5);
  Start(options);
  // This may not be the grammar's fault: another worker, or the same one later, may compile it.
  const absl::Status status = Compile(SlowToCompile()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrorReason(status), "GRAMMAR_PROCESS_LOST") << status;
  EXPECT_EQ(output_->compiling_pid(), 0);
}

// The answer below can be read by this grammar in very many ways, all of which XGrammar keeps: a
// mask takes half a second.
GrammarSpec SlowToMask() { return {Kind::kRegex, {"((a{0,9}){0,9}){0,9}"}}; }
std::vector<int32_t> SlowTokens() { return Ids(std::string(250, 'a')); }

TEST_F(StructuredOutputTest, AMaskThatComputesTooLongCostsOneSequenceAnError) {
  StructuredOutputOptions options;
  options.process.mask_cpu_limit = absl::Milliseconds(50);
  options.mask_limit = absl::Minutes(5);  // a crowded machine may take long over them
  Start(options);
  const auto slow = Grammar(SlowToMask()), grammar = Grammar({Kind::kChoices, {"abcd", "cdab"}});
  const std::vector<int32_t> first = Ids("ab"), tokens = SlowTokens(), second = Ids("cd");
  const auto masks = output_->Masks(
      {{1, grammar.get(), first}, {2, slow.get(), tokens}, {3, grammar.get(), second}});
  EXPECT_TRUE(masks[0].ok()) << masks[0].status();
  EXPECT_EQ(ErrorReason(masks[1].status()), "SCHEMA_TOO_COMPLEX") << masks[1].status();
  EXPECT_TRUE(absl::StrContains(masks[1].status().message(), "of the processor"))
      << masks[1].status();
  EXPECT_TRUE(masks[2].ok()) << masks[2].status();
}

TEST_F(StructuredOutputTest, AMaskThatNeverComesCostsOneSequenceAnError) {
  StructuredOutputOptions options;
  options.process.mask_cpu_limit = absl::Minutes(5);
  options.mask_limit = absl::Milliseconds(1);
  Start(options);
  const absl::Status status = MaskOf(1, *Grammar(SlowToMask()), SlowTokens()).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_EQ(ErrorReason(status), "GRAMMAR_PROCESS_LOST") << status;
}

// The real thing: an expression whose automaton is too large for time or memory.
TEST_F(StructuredOutputTest, AnExplosiveGrammarIsRefusedInTime) {
  StructuredOutputOptions options;
  options.process.compile_cpu_limit = absl::Milliseconds(500);
  options.compile_limit = absl::Minutes(5);  // a crowded machine may take long over them
  Start(options);
  const absl::Status status = Compile(SlowToCompile()).status();
  EXPECT_EQ(ErrorReason(status), "SCHEMA_TOO_COMPLEX") << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "of the processor")) << status;
  // It is not tried again.
  ASSERT_NE(Grammar({Kind::kChoices, {"ab"}}), nullptr);
  const pid_t compiler = output_->compiling_pid();
  EXPECT_EQ(ErrorReason(Compile(SlowToCompile()).status()), "SCHEMA_TOO_COMPLEX");
  EXPECT_EQ(output_->compiling_pid(), compiler);
}

// Places of the queue are for requests whose clients are there.
TEST_F(StructuredOutputTest, ACancelledRequestLeavesTheQueueAndIsNotCompiled) {
  StructuredOutputOptions options;
  options.max_queued = 1;
  options.compile_limit = absl::Minutes(2);
  Start(options);
  ASSERT_NE(Grammar({Kind::kChoices, {"ab"}}), nullptr);
  const pid_t compiler = output_->compiling_pid();
  StopProcess(compiler);
  auto slow = StartToCompile(1, "slow");
  // Accepted once the compiling thread has taken the slow one.
  std::future<StructuredOutput::Compiled> waiting;
  do {
    waiting = StartToCompile(2, "cancelled");
  } while (waiting.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  EXPECT_EQ(ErrorReason(StartToCompile(3, "refused").get().status()), "GRAMMAR_QUEUE_FULL");
  output_->Cancel(1);  // no effect: its compilation runs
  output_->Cancel(3);  // unknown
  output_->Cancel(2);
  ASSERT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_TRUE(absl::IsCancelled(waiting.get().status()));
  auto next = StartToCompile(4, "next");
  EXPECT_NE(slow.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  ASSERT_EQ(kill(compiler, SIGCONT), 0);
  const auto first = slow.get(), second = next.get();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->id, (*first)->id + 1) << "something was compiled between them";
}

TEST_F(StructuredOutputTest, WhatDoesNotParseIsInvalid) {
  const absl::Status status = Compile({Kind::kRegex, {"*a"}}).status();
  EXPECT_EQ(ErrorReason(status), "SCHEMA_INVALID");
  EXPECT_FALSE(absl::StrContains(status.message(), ".cc")) << status;
  EXPECT_EQ(ErrorReason(Compile({Kind::kJsonSchema, {"{"}}).status()), "SCHEMA_INVALID");
}

TEST_F(StructuredOutputTest, TheCacheIsBoundedAndKeepsWhatIsInUse) {
  StructuredOutputOptions options;
  options.cache_bytes =
      static_cast<int64_t>(Grammar({Kind::kChoices, {"yes0"}})->serialized.size() * 5 / 2);
  Start(options);
  auto first = Grammar({Kind::kChoices, {"yes0"}});
  for (int i = 1; i < 5; ++i) {
    ASSERT_NE(Grammar({Kind::kChoices, {absl::StrCat("yes", i)}}), nullptr);
  }
  EXPECT_EQ(Grammar({Kind::kChoices, {"yes0"}})->id, first->id);
  const auto second = Grammar({Kind::kChoices, {"yes5"}});
  const absl::Status full = Compile({Kind::kChoices, {"yes6"}}).status();
  EXPECT_EQ(ErrorReason(full), "GRAMMAR_CACHE_FULL") << full;
  first = nullptr;
  EXPECT_NE(Grammar({Kind::kChoices, {"yes6"}}), nullptr);
  EXPECT_TRUE(MaskOf(1, *second, {}).ok());
}

TEST_F(StructuredOutputTest, StopFailsWhatComes) {
  output_->Stop();
  EXPECT_EQ(ErrorReason(Compile({Kind::kChoices, {"a"}}).status()), "DRAINING");
}

TEST_F(StructuredOutputTest, AModelWithoutATokenizerIsAnError) {
  StructuredOutputOptions options;
  dir_ = ::testing::TempDir() + "/no_such_model";
  Start(options);
  EXPECT_EQ(ErrorReason(Compile({Kind::kChoices, {"a"}}).status()), "BAD_TOKENIZER");
}

}  // namespace
}  // namespace baton::grammar
