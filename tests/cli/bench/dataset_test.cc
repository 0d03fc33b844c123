#include "cli/bench/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kVocab = 50'000;

std::string Write(const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/dataset-", getpid());
  std::ofstream(path) << text;
  return path;
}

DatasetOptions Of(const std::string& name, const std::string& text) {
  DatasetOptions options;
  options.name = name;
  options.path = Write(text);
  options.shuffle = false;
  options.num_prompts = 3;
  return options;
}

std::vector<BenchPrompt> Prompts(const DatasetOptions& options,
                                 const TokenCounter& count = nullptr) {
  const auto prompts = MakePrompts(options, kVocab, count);
  EXPECT_TRUE(prompts.ok()) << prompts.status();
  return prompts.value_or(std::vector<BenchPrompt>());
}

// A token is a character.
absl::StatusOr<int> Characters(const std::string& text) { return static_cast<int>(text.size()); }

bool SharePrefix(const BenchPrompt& a, const BenchPrompt& b, size_t tokens) {
  return std::equal(a.token_ids.begin(), a.token_ids.begin() + static_cast<ptrdiff_t>(tokens),
                    b.token_ids.begin());
}

TEST(BenchDatasetTest, RandomPromptsShareTheirPrefixOnlyAndRepeat) {
  DatasetOptions options;
  options.num_prompts = 200;
  options.random_prefix_len = 30;
  options.random_input_len = 100;
  options.random_output_len = 10;
  options.random_range_ratio = 0.5;
  const auto prompts = Prompts(options);
  ASSERT_THAT(prompts, SizeIs(200));
  std::set<size_t> inputs;
  std::set<int> outputs;
  for (const BenchPrompt& prompt : prompts) {
    EXPECT_TRUE(SharePrefix(prompt, prompts[0], 30));
    inputs.insert(prompt.token_ids.size() - 30);
    outputs.insert(prompt.output_tokens);
    for (const int32_t id : prompt.token_ids) ASSERT_LT(id, kVocab);
  }
  EXPECT_FALSE(SharePrefix(prompts[0], prompts[1], 40));
  EXPECT_GE(*inputs.begin(), 50u);
  EXPECT_LE(*inputs.rbegin(), 150u);
  EXPECT_GT(inputs.size(), 60u);
  EXPECT_THAT(outputs, SizeIs(11)) << "5 to 15";
  EXPECT_EQ(Prompts(options)[7].token_ids, prompts[7].token_ids);
  options.seed = 1;
  EXPECT_NE(Prompts(options)[7].token_ids, prompts[7].token_ids);
}

TEST(BenchDatasetTest, PrefixRepetitionHasSoManyPrefixes) {
  DatasetOptions options;
  options.name = "prefix_repetition";
  options.num_prompts = 20;
  options.prefix_repetition_num_prefixes = 4;
  options.prefix_repetition_prefix_len = 8;
  options.prefix_repetition_suffix_len = 5;
  std::map<std::vector<int32_t>, int> prefixes;
  for (const BenchPrompt& prompt : Prompts(options)) {
    ASSERT_THAT(prompt.token_ids, SizeIs(13));
    EXPECT_EQ(prompt.output_tokens, 128);
    ++prefixes[{prompt.token_ids.begin(), prompt.token_ids.begin() + 8}];
  }
  EXPECT_THAT(prefixes, SizeIs(4));
  for (const auto& [prefix, count] : prefixes) EXPECT_EQ(count, 5);
}

TEST(BenchDatasetTest, CustomLinesRepeatUntilThereAreEnough) {
  DatasetOptions options = Of("custom",
                              "{\"prompt\": \"a\", \"output_tokens\": 5}\n\n"
                              "{\"prompt\": \"b\", \"output_tokens\": 6}\n");
  const auto texts = [&] {
    std::string all;
    for (const BenchPrompt& p : Prompts(options)) absl::StrAppend(&all, p.text, p.output_tokens);
    return all;
  };
  EXPECT_EQ(texts(), "a256b256a256");
  options.custom_output_len = -1;
  EXPECT_EQ(texts(), "a5b6a5");
  options.oversample = false;
  EXPECT_EQ(texts(), "a5b6");
  options.num_prompts = 1;
  EXPECT_EQ(texts(), "a5");
}

TEST(BenchDatasetTest, ShareGptPairsAreFilteredByLength) {
  const auto pair = [](int prompt, int answer) {
    return absl::StrCat("{\"id\": [{}], \"conversations\": [{\"from\": \"human\", \"value\": \"",
                        std::string(prompt, 'p'), "\"}, {\"from\": \"gpt\", \"value\": \"",
                        std::string(answer, 'a'), "\"}, {\"value\": \"more\"}]}");
  };
  const std::string text =
      absl::StrCat("[", pair(3, 9), ",", pair(9, 3), ",{\"conversations\": []},", pair(1025, 9),
                   ",", pair(1000, 1049), ",", pair(10, 20), ",", pair(1024, 1024), "]");
  DatasetOptions options = Of("sharegpt", text);
  options.oversample = false;
  EXPECT_THAT(Prompts(options, Characters), ElementsAre(Field(&BenchPrompt::output_tokens, 20),
                                                        Field(&BenchPrompt::output_tokens, 1024)));
  options.sharegpt_output_len = 3;
  EXPECT_THAT(Prompts(options, Characters), SizeIs(3)) << "short answers count no more";
  options.num_prompts = 100;
  EXPECT_THAT(Prompts(options, nullptr), SizeIs(6)) << "nothing counts: no filter";
  const auto failed = MakePrompts(options, kVocab, [](const std::string&) -> absl::StatusOr<int> {
    return absl::UnavailableError("gone");
  });
  EXPECT_TRUE(absl::IsUnavailable(failed.status())) << failed.status();
}

TEST(BenchDatasetTest, TracesShareBlocksWithEqualIds) {
  DatasetOptions options = Of(
      "trace",
      "{\"timestamp\": 1000, \"input_length\": 10, \"output_length\": 2, \"hash_ids\": [5, 6, 7]}\n"
      "{\"timestamp\": 1500, \"input_length\": 9, \"output_length\": 0, \"hash_ids\": [5, 8, 7]}\n"
      "{\"timestamp\": 1500.5, \"input_length\": 9, \"output_length\": 3}\n");
  options.trace_block_tokens = 4;
  const auto prompts = Prompts(options);
  ASSERT_THAT(prompts, SizeIs(3));
  EXPECT_THAT(prompts[0].token_ids, SizeIs(10));
  EXPECT_THAT(prompts[2].token_ids, SizeIs(9));
  EXPECT_TRUE(SharePrefix(prompts[0], prompts[1], 4));
  EXPECT_FALSE(SharePrefix(prompts[0], prompts[1], 5));
  EXPECT_EQ(prompts[0].token_ids[8], prompts[1].token_ids[8]) << "a partial block";
  EXPECT_EQ(prompts[0].at_s, 0);
  EXPECT_DOUBLE_EQ(prompts[1].at_s, 0.5);
  EXPECT_DOUBLE_EQ(prompts[2].at_s, 0.5005);
  EXPECT_EQ(prompts[1].output_tokens, 1) << "a request generates at least one";
  options.num_prompts = 2;
  EXPECT_THAT(Prompts(options), SizeIs(2));
}

TEST(BenchDatasetTest, BadInputNamesTheLineAndWhatIsExpected) {
  const auto error = [](const std::string& name, const std::string& text) {
    DatasetOptions options = Of(name, text);
    options.custom_output_len = -1;
    options.trace_block_tokens = 4;
    const auto prompts = MakePrompts(options, kVocab, Characters);
    EXPECT_TRUE(absl::IsInvalidArgument(prompts.status())) << text << prompts.status();
    return std::string(prompts.status().message());
  };
  const std::string good = "{\"prompt\": \"a\", \"output_tokens\": 5}\n";
  EXPECT_THAT(error("custom", good + "{"), HasSubstr(":2: expected a JSON object"));
  EXPECT_THAT(error("custom", good + "[1]"), HasSubstr(":2: expected a JSON object"));
  EXPECT_THAT(error("custom", good + "{\"prompt\": 1}"), HasSubstr(":2: expected a text"));
  EXPECT_THAT(error("custom", "{\"prompt\": \"\"}"), HasSubstr(":1: expected a text"));
  for (const char* tokens : {"0", "-1", "1.5", "\"1\"", "99999999", "18446744073709551615"}) {
    EXPECT_THAT(
        error("custom", absl::StrCat("{\"prompt\": \"a\", \"output_tokens\": ", tokens, "}")),
        HasSubstr("\"output_tokens\" from 1 to"));
  }
  EXPECT_THAT(error("custom", "\n \n"), HasSubstr("at least one prompt"));
  for (const char* text : {"{}", "[", "[1]", "[{\"conversations\": 3}]",
                           "[{\"conversations\": [{\"value\": 1}, {\"value\": \"a\"}]}]"}) {
    EXPECT_THAT(error("sharegpt", text), HasSubstr("expected a JSON array of"));
  }
  const auto trace = [&](const std::string& fields) {
    return error("trace", absl::StrCat("{", fields, "}"));
  };
  const std::string lengths = "\"input_length\": 8, \"output_length\": 1";
  EXPECT_THAT(trace(lengths), HasSubstr(":1: expected a number \"timestamp\""));
  EXPECT_THAT(trace("\"timestamp\": -1," + lengths), HasSubstr("from 0"));
  EXPECT_THAT(trace("\"timestamp\": 1e300," + lengths), HasSubstr("from 0"));
  EXPECT_THAT(trace("\"timestamp\": 1, \"input_length\": 0, \"output_length\": 1"),
              HasSubstr("\"input_length\" from 1"));
  EXPECT_THAT(trace("\"timestamp\": 1, \"hash_ids\": [1]," + lengths), HasSubstr("an entry of"));
  EXPECT_THAT(trace("\"timestamp\": 1, \"hash_ids\": [1, null]," + lengths), HasSubstr("integers"));
  EXPECT_THAT(
      error("trace", "{\"timestamp\": 2," + lengths + "}\n{\"timestamp\": 1," + lengths + "}"),
      HasSubstr(":2: expected ascending"));
  DatasetOptions absent;
  absent.name = "custom";
  for (const char* path : {"/no/such/file", "/"}) {
    absent.path = path;
    EXPECT_TRUE(absl::IsNotFound(MakePrompts(absent, kVocab, nullptr).status())) << path;
  }
}

}  // namespace
}  // namespace baton::cli
