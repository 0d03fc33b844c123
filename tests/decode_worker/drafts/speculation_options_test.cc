#include "decode_worker/drafts/speculation_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "decode_worker/options.h"

namespace baton::decode_worker {
namespace {

using ::testing::HasSubstr;
using Mode = SpeculationOptions::Mode;

TEST(SpeculationOptionsTest, OffIsTheDefault) {
  const auto off = ParseSpeculation("off");
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ(off->mode, Mode::kOff);
  EXPECT_EQ(DecodeOptions().speculation.mode, Mode::kOff);
}

TEST(SpeculationOptionsTest, SuffixesWithAndWithoutACount) {
  for (const auto& [text, drafts] :
       {std::pair("suffix", 8), std::pair("suffix:1", 1), std::pair("suffix:32", 32)}) {
    const auto parsed = ParseSpeculation(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->mode, Mode::kSuffix);
    EXPECT_EQ(parsed->max_drafts, drafts);
    EXPECT_EQ(parsed->ngram_max, 0);
  }
}

TEST(SpeculationOptionsTest, NgramsHaveThreeNumbers) {
  const auto parsed = ParseSpeculation("ngram:5,2,4");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->mode, Mode::kNgram);
  EXPECT_EQ(parsed->max_drafts, 5);
  EXPECT_EQ(parsed->ngram_min, 2);
  EXPECT_EQ(parsed->ngram_max, 4);
  EXPECT_TRUE(ParseSpeculation("ngram:32,1,1").ok());
  EXPECT_TRUE(ParseSpeculation("ngram:1,32,32").ok());
}

TEST(SpeculationOptionsTest, DraftModelsHaveAPathAndPerhapsACount) {
  struct Case {
    const char* text;
    const char* model;
    int drafts;
  };
  for (const auto& [text, model, drafts] : {Case{"draft:/models/small", "/models/small", 8},
                                            {"draft:small.gguf,5", "small.gguf", 5},
                                            {"draft:a,b", "a,b", 8},
                                            {"draft:a,b,32", "a,b", 32},
                                            {"draft:a,3b", "a,3b", 8}}) {
    const auto parsed = ParseSpeculation(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->mode, Mode::kDraft);
    EXPECT_EQ(parsed->draft_model, model);
    EXPECT_EQ(parsed->max_drafts, drafts);
  }
}

TEST(SpeculationOptionsTest, MtpHeadsHavePerhapsACount) {
  for (const auto& [text, drafts] : {std::pair("mtp", 3), {"mtp:1", 1}, {"mtp:32", 32}}) {
    const auto parsed = ParseSpeculation(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->mode, Mode::kMtp);
    EXPECT_EQ(parsed->max_drafts, drafts);
  }
}

TEST(SpeculationOptionsTest, NamesWhatIsWrong) {
  for (const char* text : {"",
                           "on",
                           "Off",
                           "off:1",
                           "suffix:",
                           "suffix:0",
                           "suffix:33",
                           "suffix:-1",
                           "suffix: 8",
                           "suffix:8,1",
                           "suffix:08",
                           "suffixes",
                           "ngram",
                           "ngram:",
                           "ngram:5",
                           "ngram:5,2",
                           "ngram:5,2,4,",
                           "ngram:5,2,4,6",
                           "ngram:0,1,1",
                           "ngram:33,1,1",
                           "ngram:5,0,1",
                           "ngram:5,3,2",
                           "ngram:5,1,33",
                           "ngram:5,,4",
                           "ngram:5;2;4",
                           "draft",
                           "draft:",
                           "draft:,4",
                           "draft:a,",
                           "draft:a,0",
                           "draft:a,33",
                           "mtp:",
                           "mtp:0",
                           "mtp:33",
                           "mtp,2",
                           "suffix:99999999999999999999"}) {
    const absl::Status status = ParseSpeculation(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(ErrorField(status), "--speculative") << text;
    EXPECT_EQ(ErrorReason(status), "BAD_OPTION") << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", text, "\" given")));
  }
  const std::string text(1 << 20, 'x');
  EXPECT_LT(ParseSpeculation(text).status().message().size(), 400u);
}

TEST(SpeculationOptionsTest, PrioritiesInAnyOrder) {
  using Chosen = std::array<bool, 3>;
  EXPECT_EQ(*ParseSpeculativePriorities("low,normal,high"), (Chosen{true, true, true}));
  EXPECT_EQ(*ParseSpeculativePriorities("high"), (Chosen{false, false, true}));
  EXPECT_EQ(*ParseSpeculativePriorities("normal,low"), (Chosen{true, true, false}));
  for (const char* text : {"", "low,", ",", "low normal", "Low", "all", "low,,high"}) {
    const absl::Status status = ParseSpeculativePriorities(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(ErrorField(status), "--speculative-priorities") << text;
  }
}

// Parses a decode worker's flags; false: they are refused.
bool Parse(const std::string& flags, DecodeOptions* options) {
  CLI::App app;
  AddDecodeFlags(app, *options);
  try {
    app.parse(flags);
  } catch (const CLI::ParseError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--speculative"));
    return false;
  }
  return true;
}

TEST(SpeculationOptionsTest, TheFlagsSetOneValueInAnyOrder) {
  for (const char* flags : {"--speculative ngram:3,1,2 --speculative-priorities low,high",
                            "--speculative-priorities low,high --speculative ngram:3,1,2"}) {
    DecodeOptions options;
    ASSERT_TRUE(Parse(flags, &options));
    EXPECT_EQ(options.speculation.mode, Mode::kNgram);
    EXPECT_EQ(options.speculation.max_drafts, 3);
    EXPECT_EQ(options.speculation.priorities, (std::array<bool, 3>{true, false, true}));
  }
  DecodeOptions options;
  EXPECT_TRUE(Parse("", &options));
  EXPECT_EQ(options.speculation.mode, Mode::kOff);
  EXPECT_FALSE(Parse("--speculative suffix:64", &options));
  EXPECT_FALSE(Parse("--speculative-priorities urgent", &options));
}

}  // namespace
}  // namespace baton::decode_worker
