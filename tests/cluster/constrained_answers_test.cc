// Structured output on a whole cluster with the demo model: the oracle's tokens, whatever the
// batch, the cache, a preemption or the loss of a worker, and answers that are what was asked for.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <regex>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "common/chat/tool_call_syntax.h"
#include "common/chat/tool_calls.h"
#include "common/grammar/from_proto.h"
#include "common/grammar/structured_output.h"
#include "common/json/json.h"
#include "decode_worker/grammar_request.h"
#include "tests/cluster/whole_cluster.h"
#include "tests/testing/http_client.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

constexpr char kSchema[] = R"({"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
  "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
  "ok": {"type": "boolean"}}, "required": ["name", "age", "tags", "ok"]})";
constexpr char kRegex[] = "[0-9]{3}-(abc|xyz)+ [A-Z][a-z]{0,5}";

struct ConstrainedCase {
  GenerateRequest request;
  std::vector<int32_t> prompt;
  std::vector<std::vector<int32_t>> expected;  // by choice
};

class ConstrainedAnswersTest : public WholeClusterTest {
 protected:
  void Start(int num_blocks = 512) {
    worker::WorkerOptions options = WorkerOptions();
    options.num_blocks = num_blocks;
    decode_worker::DecodeOptions decode;
    decode.grammar_program = BATON_BIN_DIR "/baton-grammar";
    StartCluster(options, decode);
    masks_ =
        decode_worker::MakeStructuredOutput(decode.grammar_program, kModelDir, oracle_->engine());
    ASSERT_NE(masks_, nullptr);
  }

  // What the oracle draws with the masks that it computes itself.
  void Expect(ConstrainedCase& c) {
    std::promise<grammar::StructuredOutput::Compiled> done;
    masks_->Compile(
        /*id=*/0, grammar::FromProto(c.request.structured_output()),
        [&](grammar::StructuredOutput::Compiled compiled) { done.set_value(compiled); });
    const grammar::StructuredOutput::Compiled compiled = done.get_future().get();
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const auto& eos = oracle_->engine().config().eos_token_ids;
    model::SamplingParams sampling;
    sampling.temperature = c.request.sampling().temperature();
    sampling.seed = c.request.sampling().seed();
    for (int choice = 0; choice < c.request.n(); ++choice) {
      sampling.choice = static_cast<uint32_t>(choice);
      const uint64_t session = ++last_session_;
      c.expected.push_back(oracle_->Generate(
          c.prompt, sampling, c.request.stop().max_tokens(), {eos.begin(), eos.end()}, 0,
          [&](absl::Span<const int32_t> answer) {
            return masks_->Masks({{session, compiled->get(), answer}})[0].value().front();
          }));
      masks_->Close(session);
    }
  }

  static v1::StructuredOutput Regex(const std::string& regex) {
    v1::StructuredOutput structured;
    structured.set_regex(regex);
    return structured;
  }
  static v1::StructuredOutput OfKind(int kind) {
    v1::StructuredOutput structured = Regex(kRegex);
    if (kind == 0) structured.mutable_json_object();
    if (kind == 1) structured.set_json_schema(kSchema);
    if (kind == 2) {
      for (const char* const text : {"yes", "no", "don't know", "naïve"}) {
        structured.mutable_choices()->add_texts(text);
      }
    }
    if (kind == 4) *structured.mutable_tool_calls() = TwoTools();
    return structured;
  }

  // What follows the first text `end` is constrained.
  static v1::StructuredOutput Behind(const std::string& end, v1::StructuredOutput structured) {
    structured.mutable_reasoning()->set_end(end);
    return structured;
  }

  // In the format of Hermes.
  static v1::StructuredOutput::ToolCalls TwoTools() {
    v1::StructuredOutput::ToolCalls calls;
    const chat::ToolCallSyntax& syntax = chat::SyntaxesOf(chat::ToolCallFormat::kHermes)[0];
    calls.set_before_name(std::string(syntax.before_name));
    calls.set_before_arguments(std::string(syntax.before_arguments));
    calls.set_after_arguments(std::string(syntax.after_arguments));
    calls.set_separator(std::string(syntax.separator));
    calls.set_required(true);
    for (const char* const name : {"first", "second"}) {
      calls.add_tools()->set_name(name);
      calls.mutable_tools()->rbegin()->set_parameters(
          R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99},
              "color": {"enum": ["red", "green"]}}, "required": ["n", "color"]})");
    }
    return calls;
  }

  ConstrainedCase MakeCase(std::mt19937& random, v1::StructuredOutput structured, int max_tokens,
                           int n = 1) {
    ConstrainedCase c;
    if (random() % 2 == 0) c.prompt = shared_prompt_;
    for (int i = 1 + static_cast<int>(random() % 60); i > 0; --i) {
      c.prompt.push_back(static_cast<int32_t>(random() % kVocabulary));
    }
    c.request.mutable_token_ids()->mutable_ids()->Add(c.prompt.begin(), c.prompt.end());
    c.request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.0f : 1.2f);
    c.request.mutable_sampling()->set_seed(random());
    c.request.mutable_stop()->set_max_tokens(max_tokens);
    c.request.set_return_token_ids(true);
    c.request.set_n(n);
    *c.request.mutable_structured_output() = std::move(structured);
    Expect(c);
    return c;
  }

  // The tokens and the texts of all choices.
  void Ask(const ConstrainedCase& c) {
    auto stub = baton::v1::InferenceService::NewStub(channel_);
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    baton::v1::GenerateOnceRequest once;
    *once.mutable_request() = c.request;
    baton::v1::GenerateOnceResponse response;
    const grpc::Status status = stub->GenerateOnce(&context, once, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.choices_size(), static_cast<int>(c.expected.size()));
    for (int i = 0; i < response.choices_size(); ++i) {
      const auto& choice = response.choices(i);
      const std::vector<int32_t> tokens(choice.token_ids().begin(), choice.token_ids().end());
      EXPECT_EQ(tokens, c.expected[static_cast<size_t>(i)]) << choice.text();
      if (choice.finish_reason() == v1::FINISH_REASON_STOP) {
        ++complete_;
        ExpectWhatWasAskedFor(c.request.structured_output(), choice.text());
      }
    }
  }

  static void ExpectWhatWasAskedFor(const v1::StructuredOutput& asked, const std::string& answer) {
    std::string text = answer, before;  // white space may come before what is constrained
    if (asked.has_reasoning()) {
      const std::string& end = asked.reasoning().end();
      const size_t at = answer.find(end);
      ASSERT_NE(at, std::string::npos) << answer;
      text = answer.substr(at + end.size());
      before = "\\s*";
    }
    if (asked.has_regex()) {
      // The expression itself may match white space at its beginning.
      EXPECT_TRUE(std::regex_match(text, std::regex(before + "(?:" + asked.regex() + ")"))) << text;
      return;
    }
    text = std::string(absl::StripLeadingAsciiWhitespace(text));
    if (asked.has_choices()) {
      const auto& texts = asked.choices().texts();
      EXPECT_NE(std::find(texts.begin(), texts.end(), text), texts.end()) << text;
    } else if (asked.has_tool_calls()) {
      chat::ToolCallParser parser(chat::ToolCallFormat::kHermes, /*id_seed=*/1);
      chat::JoinedAnswer parsed;
      for (const chat::AnswerPart& part : parser.Append(text)) parsed.Add(part);
      for (const chat::AnswerPart& part : parser.Finish()) parsed.Add(part);
      EXPECT_EQ(parsed.text, "") << text;
      EXPECT_GE(parsed.calls.size(), 1u) << text;
      for (const chat::ToolCall& call : parsed.calls) {
        EXPECT_TRUE(call.name == "first" || call.name == "second") << text;
        const absl::StatusOr<json::Value> arguments = json::Parse(call.arguments, "arguments");
        ASSERT_TRUE(arguments.ok()) << text << arguments.status();
        ASSERT_EQ(arguments->keys, (std::vector<std::string>{"n", "color"})) << text;
        EXPECT_GE(arguments->items[0].scalar.integer, 0) << text;
        EXPECT_LE(arguments->items[0].scalar.integer, 99) << text;
        const std::string& color = arguments->items[1].scalar.text;
        EXPECT_TRUE(color == "red" || color == "green") << text;
      }
    } else {
      const absl::StatusOr<json::Value> value = json::Parse(text, "answer");
      ASSERT_TRUE(value.ok()) << text << value.status();
      ASSERT_EQ(value->kind, json::Value::Kind::kObject) << text;
      if (!asked.has_json_schema()) return;
      ASSERT_EQ(value->keys.size(), 4u) << text;
      EXPECT_EQ(value->Find("name")->scalar.kind, json::Scalar::Kind::kString) << text;
      EXPECT_GE(value->Find("age")->scalar.integer, 0) << text;
      EXPECT_LE(value->Find("age")->scalar.integer, 150) << text;
      EXPECT_LE(value->Find("tags")->items.size(), 3u) << text;
      for (const json::Value& tag : value->Find("tags")->items) {
        EXPECT_TRUE(std::set<std::string>({"red", "green", "blue"}).contains(tag.scalar.text));
      }
    }
  }

  void AskAll(const std::vector<ConstrainedCase>& cases, int clients) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < clients; ++i) {
      threads.emplace_back([&] {
        for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
          SCOPED_TRACE("case " + std::to_string(at));
          Ask(cases[at]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  const std::vector<int32_t> shared_prompt_ = std::vector<int32_t>(70, 17);
  std::unique_ptr<grammar::StructuredOutput> masks_;
  uint64_t last_session_ = 0;
  std::atomic<int> complete_{0};
};

TEST_F(ConstrainedAnswersTest, TokensAreTheOraclesInEveryBatchAndCacheState) {
  Start();
  std::mt19937 random(testing::TestSeed(41));
  std::vector<ConstrainedCase> cases;
  for (int i = 0; i < 25; ++i) {
    const v1::StructuredOutput structured = OfKind(i % 5);
    cases.push_back(MakeCase(random, i % 4 == 3 ? Behind("e", structured) : structured, 80,
                             /*n=*/i % 6 == 5 ? 3 : 1));
  }
  AskAll(cases, 6);
  AskAll(cases, 6);  // the prompts are cached now
  EXPECT_GT(complete_.load(), 10) << "nearly all answers were cut before their end";
  ExpectIdle();
}

TEST_F(ConstrainedAnswersTest, APreemptionChangesNoToken) {
  Start(/*num_blocks=*/30);
  std::mt19937 random(testing::TestSeed(42));
  std::vector<ConstrainedCase> cases;
  for (int i = 0; i < 24; ++i) {
    const v1::StructuredOutput structured = Regex("[a-z ]{500,600}[.]");
    cases.push_back(MakeCase(random, i % 3 == 0 ? Behind("a", structured) : structured, 300));
  }
  AskAll(cases, 24);
  double preempted = 0;
  for (const auto& worker : decode_) {
    preempted += testing::MetricSum(worker->metrics_address(), "baton_preemptions_total");
  }
  EXPECT_GT(preempted, 0) << "the pools were not too small";
  ExpectIdle();
}

TEST_F(ConstrainedAnswersTest, ALostWorkerChangesNoToken) {
  Start();
  std::mt19937 random(testing::TestSeed(43));
  std::vector<ConstrainedCase> cases;
  for (int i = 0; i < 8; ++i) {
    const v1::StructuredOutput structured = Regex("([a-z]{3}[0-9])+!{590}");
    cases.push_back(MakeCase(
        random, i % 2 == 0 ? Behind(i == 0 ? "e" : "no such text", structured) : structured, 600));
  }
  std::vector<std::thread> threads;
  for (const ConstrainedCase& c : cases) threads.emplace_back([&] { Ask(c); });
  // The decode worker is lost once it generates.
  const std::string address = decode_[0]->address();
  while (BlockCounts(address).active() < 10) std::this_thread::yield();
  decode_[0]->Stop();
  for (std::thread& thread : threads) thread.join();
  decode_.erase(decode_.begin());
  ExpectIdle();
}

// The grammar processes that workers of this process have started.
std::vector<pid_t> GrammarProcesses() {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    pid_t pid = 0, parent = 0;
    std::string name, state;
    if (stat >> pid >> name >> state >> parent && parent == getpid() && name == "(baton-grammar)") {
      pids.push_back(pid);
    }
  }
  return pids;
}

// A compilation hangs, the queue behind it is full, and the clients leave.
TEST_F(ConstrainedAnswersTest, GrammarsOfClientsThatLeftAreNotCompiled) {
  Start();
  const auto constrained = [&](const std::string& regex) {
    auto request = testing::MakeDecodeRequest(*prefill_[0], *decode_[0], shared_prompt_, {}, 8);
    const auto& eos = oracle_->engine().config().eos_token_ids;
    request.mutable_stop_token_ids()->Add(eos.begin(), eos.end());
    request.mutable_structured_output()->set_regex(regex);
    return request;
  };
  const auto queue_is_full = [&] {
    const std::string metrics = testing::HttpGet(decode_[0]->metrics_address(), "/metrics");
    return metrics.find("grammar_queue_full") != std::string::npos;
  };
  const auto channel = MakeChannel(decode_[0]->address());
  auto stub = internal::v1::DecodeService::NewStub(channel);
  ASSERT_TRUE(testing::Decode(channel, constrained("[a-c]{3}")).status.ok());
  const std::vector<pid_t> processes = GrammarProcesses();
  ASSERT_EQ(processes.size(), 2u);
  for (const pid_t pid : processes) ASSERT_EQ(kill(pid, SIGSTOP), 0);
  std::deque<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<internal::v1::DecodeResponse>>> readers;
  for (int i = 0; i < 65 || !queue_is_full(); ++i) {
    readers.push_back(stub->Decode(&contexts.emplace_back(), constrained("a" + std::to_string(i))));
  }
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (const auto& reader : readers) reader->Finish();
  // A call has a place once it waits until its deadline instead of being refused.
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  grpc::Status status;
  do {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
    internal::v1::DecodeResponse response;
    auto reader = stub->Decode(&context, constrained("b"));
    while (reader->Read(&response)) continue;
    status = reader->Finish();
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && absl::Now() < limit);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  for (const pid_t pid : processes) ASSERT_EQ(kill(pid, SIGCONT), 0);
  EXPECT_TRUE(testing::Decode(channel, constrained("[a-c]{4}")).status.ok());

  grpc::ClientContext context;
  context.set_deadline(testing::TestDeadline());
  internal::v1::SetDrainingRequest drain;
  drain.set_epoch(decode_[0]->card().epoch());
  drain.set_draining(true);
  drain.set_wait(true);
  internal::v1::SetDrainingResponse drained;
  status = internal::v1::WorkerService::NewStub(channel)->SetDraining(&context, drain, &drained);
  EXPECT_TRUE(status.ok()) << status.error_message() << ": a call is open";
  ExpectIdle();
}

TEST_F(ConstrainedAnswersTest, WhatCannotBeDoneIsRefusedByName) {
  Start();
  const auto reason = [&](const std::function<void(GenerateRequest&)>& change) {
    GenerateRequest request;
    request.set_text("x");
    request.mutable_stop()->set_max_tokens(20);
    request.mutable_structured_output()->set_regex("a+");
    change(request);
    const absl::Status status = Generate(request).status;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return ErrorReason(status) + " " + ErrorField(status);
  };
  EXPECT_EQ(reason([](GenerateRequest& r) { r.set_beam_width(2); }),
            "NOT_WITH_STRUCTURED_OUTPUT beam_width");
  EXPECT_EQ(reason([](GenerateRequest& r) { r.mutable_stop()->set_ignore_eos(true); }),
            "NOT_WITH_STRUCTURED_OUTPUT stop.ignore_eos");
  EXPECT_EQ(reason([](GenerateRequest& r) { r.mutable_stop()->set_min_tokens(2); }),
            "NOT_WITH_STRUCTURED_OUTPUT stop.min_tokens");
  EXPECT_EQ(reason([](GenerateRequest& r) {
              r.mutable_structured_output()->set_json_schema(R"({"not": {}})");
            }),
            "SCHEMA_UNSUPPORTED structured_output.json_schema");
  EXPECT_EQ(reason([](GenerateRequest& r) { r.mutable_structured_output()->Clear(); }),
            "SCHEMA_INVALID structured_output.choices");
  EXPECT_EQ(reason([](GenerateRequest& r) { r.mutable_structured_output()->set_regex("*a"); }),
            "SCHEMA_INVALID structured_output.regex");
  EXPECT_EQ(reason([](GenerateRequest& r) {
              *r.mutable_structured_output()->mutable_tool_calls() = TwoTools();
              r.mutable_structured_output()->mutable_tool_calls()->mutable_tools(1)->set_parameters(
                  R"({"type": "object", "not": {}})");
            }),
            "SCHEMA_UNSUPPORTED structured_output.tool_calls.tools[1].parameters");
  // The compiler of grammars finds this error.
  EXPECT_EQ(reason([](GenerateRequest& r) {
              r.mutable_structured_output()->set_json_schema(
                  R"({"type": "integer", "minimum": 5, "maximum": 3})");
            }),
            "SCHEMA_INVALID structured_output");

  internal::v1::DecodeRequest request;
  request.mutable_structured_output()->set_regex("a");
  EXPECT_EQ(ErrorReason(decode_worker::CheckStructuredOutput(request, /*available=*/false,
                                                             oracle_->engine())),
            "STRUCTURED_OUTPUT_UNAVAILABLE");
}

}  // namespace
}  // namespace baton
