#include "router/request/request_class.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/error.h"
#include "router/options.h"
#include "tests/router/fake_clock.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

constexpr char kClasses[] = R"({
  "classes": {
    "chat": {"max_context_tokens": 4096, "max_output_tokens": 512, "default_max_tokens": 64,
             "default_priority": "normal", "max_priority": "high", "ttft_slo_ms": 500,
             "inter_token_slo_ms": 40},
    "batch": {"max_output_tokens": 9000, "max_priority": "low", "pool": "bulk", "spill": false}
  },
  "tenants": {"team-a": "chat", "team-b": "batch"},
  "default": "chat"
})";

RequestClass Flags() {
  RequestClass flags;
  flags.max_output_tokens = 1000;
  flags.default_max_tokens = 100;
  return flags;
}

v1::GenerateRequest ClassedRequest(v1::Priority priority, int max_tokens = 0) {
  v1::GenerateRequest request;
  request.set_priority(priority);
  if (max_tokens > 0) request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

TEST(RequestClassTest, AFileOfClasses) {
  const auto table = ParseClasses(kClasses, "f", Flags());
  ASSERT_TRUE(table.ok()) << table.status();
  const RequestClass& chat = *table->tenants.at("team-a");
  EXPECT_EQ(chat.max_context_tokens, 4096);
  EXPECT_EQ(chat.max_output_tokens, 512);
  EXPECT_EQ(chat.default_max_tokens, 64);
  EXPECT_EQ(chat.max_priority, v1::PRIORITY_HIGH);
  EXPECT_EQ(chat.ttft_slo, absl::Milliseconds(500));
  EXPECT_EQ(chat.inter_token_slo, absl::Milliseconds(40));
  EXPECT_EQ(chat.pool, "");
  EXPECT_TRUE(chat.spill);
  const RequestClass& batch = *table->tenants.at("team-b");
  EXPECT_EQ(batch.max_output_tokens, 1000) << "the flag's, which is lower";
  EXPECT_EQ(batch.default_max_tokens, 100) << "the flag's";
  EXPECT_EQ(batch.pool, "bulk");
  EXPECT_FALSE(batch.spill);
  EXPECT_EQ(table->fallback->max_context_tokens, 4096);
  EXPECT_EQ(ParseClasses("{}", "f", Flags())->fallback->max_output_tokens, 1000);
}

TEST(RequestClassTest, BadFilesAreRefusedByPlace) {
  const struct {
    const char* text;
    const char* place;
  } cases[] = {
      {"{\"classes\":\n {", "line 2"},
      {"[]", "the file"},
      {R"({"klasses": {}})", "klasses"},
      {R"({"classes": {"a": {"pool": ""}}})", "classes.a.pool"},
      {R"({"classes": {"a": {"pool": "x y"}}})", "classes.a.pool"},
      {R"({"classes": {"a": {"spill": 1}}})", "classes.a.spill"},
      {R"({"classes": {"a": {"max_output_tokens": 0}}})", "classes.a.max_output_tokens"},
      {R"({"classes": {"a": {"max_context_tokens": 1.5}}})", "classes.a.max_context_tokens"},
      {R"({"classes": {"a": {"ttft_slo_ms": "1"}}})", "classes.a.ttft_slo_ms"},
      {R"({"classes": {"a": {"max_priority": "urgent"}}})", "classes.a.max_priority"},
      {R"({"classes": {"a": {"max_priority": "low", "default_priority": "high"}}})",
       "classes.a.default_priority"},
      {R"({"classes": {"a": {"max_tokens": 5}}})", "classes.a.max_tokens"},
      {R"({"classes": {"a": 5}})", "classes.a"},
      {R"({"classes": {"a": {}}, "tenants": {"t": "b"}})", "tenants.t"},
      {R"({"classes": {"a": {}}, "tenants": {"t\u00e9": "a"}})", "tenants.t"},
      {R"({"default": "a"})", "default"},
  };
  for (const auto& [text, place] : cases) {
    const absl::Status status = ParseClasses(text, "classes.json", Flags()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(ErrorReason(status), "BAD_CLASSES") << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(place)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("classes.json")) << text;
  }
}

TEST(RequestClassTest, TheFileIsReadAgainAndABadOneChangesNothing) {
  const std::string path = ::testing::TempDir() + "/request_classes.json";
  const auto write = [&path](const std::string& text) {
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
  };
  baton::testing::FakeClock clock;
  write("{\"default\": 5}");
  EXPECT_EQ(ErrorReason(RequestClasses::Load(path, Flags(), clock).status()), "BAD_CLASSES");
  write(kClasses);
  auto classes = RequestClasses::Load(path, Flags(), clock);
  ASSERT_TRUE(classes.ok()) << classes.status();
  int errors = 0;
  (*classes)->SetOnBadFile([&errors] { ++errors; });
  EXPECT_EQ((*classes)->Of("team-b")->pool, "bulk");
  EXPECT_EQ((*classes)->Of("another")->max_output_tokens, 512);
  write(R"({"classes": {"c": {"pool": "p2"}}, "tenants": {"team-b": "c"}})");
  EXPECT_EQ((*classes)->Of("team-b")->pool, "bulk") << "not looked at yet";
  clock.Advance(security::ReloadedFile::kPeriod);
  EXPECT_EQ((*classes)->Of("team-b")->pool, "p2");
  EXPECT_EQ((*classes)->Of("team-a")->max_output_tokens, 1000) << "by the flags: no default class";
  write("{");
  clock.Advance(security::ReloadedFile::kPeriod);
  EXPECT_EQ((*classes)->Of("team-b")->pool, "p2");
  EXPECT_EQ(errors, 1);
  clock.Advance(security::ReloadedFile::kPeriod);
  EXPECT_EQ((*classes)->Of("team-b")->pool, "p2");
  EXPECT_EQ(errors, 1) << "once for each change";
  std::filesystem::remove(path);
}

TEST(RequestClassTest, PrioritiesAreFilledInAndBounded) {
  RequestClass batch;
  batch.max_priority = v1::PRIORITY_NORMAL;
  v1::GenerateRequest request = ClassedRequest(v1::PRIORITY_UNSPECIFIED);
  EXPECT_TRUE(ApplyClass(batch, &request).ok());
  EXPECT_EQ(request.priority(), v1::PRIORITY_UNSPECIFIED);
  batch.default_priority = v1::PRIORITY_LOW;
  EXPECT_TRUE(ApplyClass(batch, &request).ok());
  EXPECT_EQ(request.priority(), v1::PRIORITY_LOW);
  request = ClassedRequest(v1::PRIORITY_NORMAL);
  EXPECT_TRUE(ApplyClass(batch, &request).ok());
  EXPECT_EQ(request.priority(), v1::PRIORITY_NORMAL);
  request = ClassedRequest(v1::PRIORITY_HIGH);
  EXPECT_EQ(ErrorReason(ApplyClass(batch, &request)), "PRIORITY_LIMIT");
  RequestClass low;
  low.max_priority = v1::PRIORITY_LOW;
  request = ClassedRequest(v1::PRIORITY_UNSPECIFIED);
  EXPECT_TRUE(ApplyClass(low, &request).ok());
  EXPECT_EQ(request.priority(), v1::PRIORITY_LOW) << "the default, normal, is above it";
}

TEST(RequestClassTest, LongerAnswersThanAllowedAreRefusedWithBothNumbers) {
  RequestClass bounded;
  bounded.max_output_tokens = 10;
  v1::GenerateRequest request = ClassedRequest(v1::PRIORITY_UNSPECIFIED, 10);
  EXPECT_TRUE(ApplyClass(bounded, &request).ok());
  request.mutable_stop()->set_max_tokens(11);
  const absl::Status status = ApplyClass(bounded, &request);
  EXPECT_EQ(ErrorReason(status), "OUTPUT_LIMIT");
  EXPECT_EQ(ErrorField(status), "stop.max_tokens");
  EXPECT_THAT(std::string(status.message()), HasSubstr("11 given, at most 10"));
  request.mutable_stop()->clear_max_tokens();
  request.mutable_stop()->set_min_tokens(11);
  EXPECT_EQ(ErrorField(ApplyClass(bounded, &request)), "stop.min_tokens");
}

TEST(RequestClassTest, LongPromptsHaveTheirPoolUnlessTheClassHasOne) {
  Options options;
  RequestClass none, own;
  own.pool = "own";
  EXPECT_EQ(PoolFor(none, options, 1 << 20), "");
  options.long_prompt_tokens = 100;
  options.long_pool = "long";
  EXPECT_EQ(PoolFor(none, options, 99), "");
  EXPECT_EQ(PoolFor(none, options, 100), "long");
  EXPECT_EQ(PoolFor(own, options, 100), "own");
}

}  // namespace
}  // namespace baton::router
