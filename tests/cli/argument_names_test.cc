#include "cli/argument_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "baton/v1/inference.pb.h"
#include "cli/commands.h"
#include "client/cpp/convert.h"
#include "common/base/error.h"

namespace baton::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStdout;

std::string HelpOf(std::vector<const char*> command) {
  command.insert(command.begin(), "baton");
  command.push_back("--help");
  CaptureStdout();
  ParseCommands(static_cast<int>(command.size()), command.data());
  return GetCapturedStdout();
}

bool IsFlagOf(const std::string& help, const std::string& flag) {
  return ::testing::Value(help, ContainsRegex(absl::StrCat("[ ,]", flag, "[ ,{]")));
}

// As a router names them: those of messages that have no flag of their own, within these.
std::vector<std::string> FieldsOf(const google::protobuf::Descriptor& request) {
  static const std::set<std::string> kSpread = {"sampling", "stop", "structured_output",
                                                "retention", "truncation"};
  std::vector<std::string> fields;
  for (int i = 0; i < request.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *request.field(i);
    const std::string name(field.name());
    if (kSpread.count(name) == 0) {
      fields.push_back(name);
      continue;
    }
    const google::protobuf::Descriptor& inner = *field.message_type();
    for (int j = 0; j < inner.field_count(); ++j) {
      fields.push_back(absl::StrCat(name, ".", std::string(inner.field(j)->name())));
    }
  }
  return fields;
}

// As the SDK names the field of a request that the router refuses.
std::string InSdk(const std::string& field) {
  return ErrorField(client::InCallersNames(InvalidField("X", field, "m"), {}));
}

TEST(ArgumentNamesTest, EachFieldOfARequestIsAFlagOrHasNone) {
  const std::string help = HelpOf({"generate"});
  const std::string warm = HelpOf({"prefix", "warm"});
  // "text" is an argument without a flag.
  const std::set<std::string> none = {"text",
                                      "token_ids",
                                      "messages",
                                      "segments",
                                      "stop.stop_token_ids",
                                      "return_token_ids",
                                      "add_special_tokens",
                                      "split_special_tokens",
                                      "truncation.keep_first",
                                      "truncation.keep_last",
                                      "truncation.retention_ratio",
                                      "structured_output.tool_calls",
                                      "structured_output.reasoning"};
  const std::set<std::string> of_others = {"cache_salt", "explain_cache"};
  std::set<std::string> flags;
  for (const std::string& field : FieldsOf(*v1::GenerateRequest::descriptor())) {
    const std::string flag = ArgumentOf(field, ArgumentStyle::kFlag);
    const std::string in_sdk = InSdk(field);
    if (none.count(field) > 0) {
      EXPECT_EQ(flag, field);
      EXPECT_EQ(ArgumentOf(in_sdk, ArgumentStyle::kFlag), in_sdk);
      continue;
    }
    EXPECT_EQ(ArgumentOf(in_sdk, ArgumentStyle::kFlag), flag) << field << ", " << in_sdk;
    if (of_others.count(field) > 0 || field.rfind("retention.", 0) == 0) {
      EXPECT_TRUE(IsFlagOf(warm + HelpOf({"explain"}), flag)) << field << ": " << flag;
    } else {
      EXPECT_TRUE(IsFlagOf(help, flag)) << field << ": " << flag;
      EXPECT_TRUE(flags.insert(flag).second) << flag << " is of two fields";
    }
  }
  EXPECT_EQ(flags.count("--top-p"), 1u);
  EXPECT_EQ(flags.count("--max-tokens"), 1u);
  const std::string score = HelpOf({"score"});
  for (const char* field : {"prefix", "items", "labels", "cache_salt", "tenant", "request_id"}) {
    EXPECT_TRUE(IsFlagOf(score, ArgumentOf(field, ArgumentStyle::kFlag))) << field;
  }
  EXPECT_TRUE(IsFlagOf(warm, ArgumentOf("replicas", ArgumentStyle::kFlag)));
  EXPECT_TRUE(IsFlagOf(HelpOf({"explain"}), ArgumentOf("max_decisions", ArgumentStyle::kFlag)));
}

TEST(ArgumentNamesTest, MessagesBeginWithTheArgument) {
  const absl::Status error = InvalidField("OUT_OF_RANGE", "sampling.top_p", "3 given");
  EXPECT_EQ(MessageWithArgument(error, ArgumentStyle::kFlag), "--top-p: 3 given");
  EXPECT_EQ(MessageWithArgument(error, ArgumentStyle::kParameter), "top_p: 3 given");
  EXPECT_EQ(
      MessageWithArgument(InvalidField("X", "stop.max_tokens", "m"), ArgumentStyle::kParameter),
      "max_tokens: m");
  EXPECT_EQ(
      MessageWithArgument(InvalidField("X", "messages[2].role", "required"), ArgumentStyle::kFlag),
      "messages[2].role: required");
  // A message with a context before it, and errors that are about no field.
  EXPECT_EQ(MessageWithArgument(Annotate(error, "router"), ArgumentStyle::kFlag),
            "router: sampling.top_p: 3 given");
  EXPECT_EQ(MessageWithArgument(absl::InternalError("n: m"), ArgumentStyle::kFlag), "n: m");
}

}  // namespace
}  // namespace baton::cli
