// The SDK's two kinds of stream, their retries and their ends, against a scripted router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "absl/synchronization/notification.h"
#include "client/cpp/client.h"
#include "tests/client/scripted_router.h"

namespace baton::client {
namespace {

using ::baton::testing::Failing;
using ::baton::testing::FakeTime;
using ::baton::testing::kScriptPatience;
using ::baton::testing::Last;
using ::baton::testing::Piece;
using ::baton::testing::ScriptedAnswer;
using ::baton::testing::ScriptedRouter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status Gone() {
  return MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST", "the worker is lost");
}
absl::Status Full(absl::Duration retry_after) {
  return WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"),
                        retry_after);
}

GenerateRequest Ask(const std::string& id = "") {
  GenerateRequest request;
  request.text = "hi";
  request.request_id = id;
  return request;
}

std::unique_ptr<Client> Connect(const ScriptedRouter& router, Environment environment,
                                const ClientOptions& options = {}) {
  auto connection = Connection::Make(router.address(), options, std::move(environment));
  BATON_CHECK(connection.ok()) << connection.status();
  return std::make_unique<Client>(*connection);
}

class RetryTest : public ::testing::Test {
 protected:
  // The whole text, or the error.
  absl::StatusOr<std::string> Read(const GenerateRequest& request, const CallOptions& call = {}) {
    const auto stream = client_->Generate(request, call);
    std::string text;
    for (const Delta& delta : *stream) text += delta.text;
    EXPECT_EQ(text, stream->completion().text());
    if (!stream->status().ok()) return stream->status();
    return text;
  }

  ScriptedRouter router_;
  FakeTime time_;
  std::unique_ptr<Client> client_ = Connect(router_, time_.environment());
};

TEST_F(RetryTest, WhatFailsBeforeItsFirstDelta) {
  router_.Reply(Failing(Gone()));
  router_.Reply(Failing(Full(absl::Seconds(1.5))));
  router_.Reply({{Piece("on"), Last("ce")}, absl::OkStatus()});
  const auto text = Read(Ask());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "once");
  EXPECT_THAT(time_.slept(), ElementsAre(absl::Milliseconds(100), absl::Milliseconds(1700)));
  const auto requests = router_.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_FALSE(requests[0].request_id().empty());
  for (const auto& request : requests) {
    EXPECT_EQ(request.SerializeAsString(), requests[0].SerializeAsString());
  }
}

TEST_F(RetryTest, AttemptsShareOneDeadline) {
  router_.Reply(Failing(Full(absl::Seconds(400))));
  router_.Reply({{Last("a")}, absl::OkStatus()});
  ASSERT_TRUE(Read(Ask()).ok());
  EXPECT_GT(router_.seconds_left()[0], 500);  // of 600 s, the default
  EXPECT_LT(router_.seconds_left()[1], 200);
}

TEST_F(RetryTest, NoneBeyondTheDeadline) {
  router_.Reply(Failing(Full(absl::Seconds(30))));
  const absl::Status error = Read(Ask("r"), {absl::Seconds(20)}).status();
  EXPECT_EQ(ErrorReason(error), "QUEUE_FULL");
  EXPECT_EQ(ErrorRetryAfter(error), absl::Seconds(30));
  EXPECT_EQ(ErrorRequestId(error), "r");
  EXPECT_EQ(router_.requests().size(), 1u);
}

TEST_F(RetryTest, AtMostMaxRetries) {
  for (int i = 0; i < 3; ++i) router_.Reply(Failing(Gone()));
  const absl::Status error = Read(Ask()).status();
  EXPECT_EQ(ErrorReason(error), "WORKER_LOST");
  EXPECT_EQ(ErrorRequestId(error), router_.requests()[0].request_id());
  EXPECT_EQ(router_.requests().size(), 3u);
}

// Not even after a heartbeat.
TEST_F(RetryTest, NoneAfterTheFirstMessage) {
  for (const char* text : {"a", ""}) {
    router_.Reply({{Piece(text)}, Gone()});
    EXPECT_EQ(ErrorReason(Read(Ask()).status()), "WORKER_LOST");
  }
  EXPECT_EQ(router_.requests().size(), 2u);
  EXPECT_TRUE(time_.slept().empty());
}

// A router that stops cuts calls that are on their way to it.
TEST_F(RetryTest, ACancellationWithoutReason) {
  const absl::Status cut = absl::CancelledError();
  router_.Reply(Failing(cut));
  router_.Reply({{Last("a")}, absl::OkStatus()});
  ASSERT_TRUE(Read(Ask()).ok());
  router_.Reply(Failing(cut));
  router_.Reply({});
  ASSERT_TRUE(client_->Tokenize("hi").ok());
  EXPECT_EQ(time_.slept().size(), 2u);
  router_.Reply({{Piece("a")}, cut});
  EXPECT_EQ(Read(Ask()).status().code(), absl::StatusCode::kCancelled);
  for (const char* reason : {"CANCELLED", "CANCELLED_BY_ID"}) {
    router_.Reply(Failing(MakeError(absl::StatusCode::kCancelled, reason, "no")));
    EXPECT_EQ(ErrorReason(Read(Ask()).status()), reason);
    router_.Reply(Failing(MakeError(absl::StatusCode::kCancelled, reason, "no")));
    EXPECT_EQ(ErrorReason(client_->Tokenize("hi").status()), reason);
  }
  EXPECT_EQ(time_.slept().size(), 2u);
}

TEST_F(RetryTest, NoneOfWhatTheCallerCancels) {
  for (const bool begun : {false, true}) {
    ScriptedAnswer hangs = {{}, absl::OkStatus(), /*hangs=*/true};
    if (begun) hangs.messages = {Piece("a")};
    router_.Reply(hangs);
    const auto stream = client_->Generate(Ask("r"));
    router_.AwaitArrived(begun ? 2 : 1);
    EXPECT_TRUE(!begun || stream->Next().has_value());
    std::thread canceller([&] { stream->Cancel(); });
    EXPECT_FALSE(stream->Next().has_value());
    canceller.join();
    EXPECT_EQ(ErrorReason(stream->status()), "CANCELLED") << stream->status();
    EXPECT_EQ(ErrorRequestId(stream->status()), "r");
    EXPECT_FALSE(IsRetryable(stream->status()));
  }
  EXPECT_TRUE(time_.slept().empty());
}

TEST_F(RetryTest, GoesToTheRouterThatTookThePlaceOfOneThatStopped) {
  auto stopped = std::make_unique<ScriptedRouter>();
  stopped->Reply({{}, absl::OkStatus(), /*hangs=*/true});
  const std::string address = stopped->address();
  client_ = Connect(*stopped, time_.environment());
  const auto stream = client_->Generate(Ask("r"));
  stopped->AwaitArrived(1);
  stopped.reset();  // cancels it
  ScriptedRouter next(address);
  next.Reply({{Last("a")}, absl::OkStatus()});
  ASSERT_TRUE(stream->Next().has_value()) << stream->status();
  EXPECT_FALSE(stream->Next().has_value());
  EXPECT_TRUE(stream->status().ok()) << stream->status();
  EXPECT_EQ(next.requests().at(0).request_id(), "r");
  EXPECT_EQ(time_.slept().size(), 1u);
}

TEST_F(RetryTest, NoneOfAWrongRequest) {
  router_.Reply(Failing(InvalidField("OUT_OF_RANGE", "n", "17 given")));
  EXPECT_EQ(ErrorField(Read(Ask()).status()), "n");
  EXPECT_EQ(router_.requests().size(), 1u);
}

TEST_F(RetryTest, UnaryCalls) {
  router_.Reply(Failing(Full(absl::Seconds(1))));
  router_.Reply({});
  const auto ids = client_->Tokenize("hi");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(7));
  EXPECT_THAT(time_.slept(), ElementsAre(absl::Milliseconds(1100)));
  const absl::Status error = client_->GenerateOnce(Ask("r")).status();  // the router has no such
  EXPECT_EQ(error.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ErrorRequestId(error), "r");
}

// A timer that reports its start, before a pause that no test could wait for.
class ReportingTimer final : public Timer {
 public:
  explicit ReportingTimer(absl::Notification* started) : started_(started) {}
  void Start(absl::Duration pause, std::function<void()> done) override {
    EXPECT_GT(pause, absl::Hours(1));
    timer_->Start(pause, std::move(done));
    started_->Notify();
  }
  void Cancel() override { timer_->Cancel(); }

 private:
  absl::Notification* const started_;
  const std::unique_ptr<Timer> timer_ = RealEnvironment().make_timer();
};

TEST(StreamEndTest, CancelEndsTheWaitForARetry) {
  ScriptedRouter router;
  absl::Notification started;
  Environment environment = RealEnvironment();
  environment.make_timer = [&] { return std::make_unique<ReportingTimer>(&started); };
  ClientOptions options;
  options.timeout = absl::Hours(5);
  const auto client = Connect(router, environment, options);
  router.Reply(Failing(Full(absl::Hours(2))));
  const auto stream = client->Generate(Ask("r"));
  std::thread canceller([&] {
    EXPECT_TRUE(started.WaitForNotificationWithTimeout(kScriptPatience));
    stream->Cancel();
  });
  EXPECT_FALSE(stream->Next().has_value());
  canceller.join();
  EXPECT_EQ(ErrorReason(stream->status()), "CANCELLED") << stream->status();
  EXPECT_EQ(ErrorRequestId(stream->status()), "r");
  EXPECT_EQ(router.requests().size(), 1u);
}

TEST(StreamEndTest, TheRealTimer) {
  const auto timer = RealEnvironment().make_timer();
  for (const bool cancelled : {false, true}) {  // once cancelled, an endless pause ends at once
    if (cancelled) timer->Cancel();
    absl::Notification over;
    timer->Start(cancelled ? absl::InfiniteDuration() : absl::Milliseconds(1),
                 [&] { over.Notify(); });
    EXPECT_TRUE(over.WaitForNotificationWithTimeout(kScriptPatience));
  }
  for (int i = 0; i < 1000; ++i) {
    const double drawn = RealEnvironment().random();
    ASSERT_TRUE(drawn >= 0 && drawn < 1) << drawn;
  }
}

// Records what a callback stream reports.
struct Report {
  std::string text;  // of the deltas
  int done = 0;
  absl::Status status;
  Completion completion;
  std::set<std::thread::id> threads;
  absl::Notification ended;

  StreamCallbacks callbacks() {
    return {[this](const Delta& delta) {
              EXPECT_EQ(done, 0);
              text += delta.text;
              threads.insert(std::this_thread::get_id());
            },
            [this](const absl::Status& end, const Completion& all) {
              ++done;
              status = end;
              completion = all;
              threads.insert(std::this_thread::get_id());
              ended.Notify();
            }};
  }
};

// What the program does not read waits in the router, though another stream of the same connection
// has shown how much the path carries.
TEST(UnreadStreamTest, KeepsNoMoreThanAWindow) {
  constexpr size_t kMessages = 400, kBytes = 64 << 10;
  const std::string text(kBytes, 'a');
  ScriptedRouter router;
  for (int call = 0; call < 2; ++call) {
    ScriptedAnswer answer;
    for (size_t i = 0; i < kMessages; ++i) answer.messages.push_back(Piece(text.c_str()));
    answer.messages.push_back(Last("."));
    router.Reply(std::move(answer));
  }
  const auto client = Connect(router, RealEnvironment());
  const auto unread = client->Generate(Ask());
  ASSERT_TRUE(unread->Next().has_value());
  const auto read = client->Generate(Ask());
  size_t bytes = 0;
  for (const Delta& delta : *read) bytes += delta.text.size();
  EXPECT_TRUE(read->status().ok()) << read->status();
  EXPECT_GT(bytes, kMessages * kBytes);
  EXPECT_LE(router.taken_bytes(0), (1 << 20) + 3 * kBytes);
  // The unread stream goes on where it stopped.
  bytes = 0;
  for (const Delta& delta : *unread) bytes += delta.text.size();
  EXPECT_TRUE(unread->status().ok()) << unread->status();
  EXPECT_GT(bytes, (kMessages - 1) * kBytes);
}

class CallbackStreamTest : public ::testing::Test {
 protected:
  ScriptedRouter router_;
  std::unique_ptr<Client> client_ = Connect(router_, RealEnvironment());
};

TEST_F(CallbackStreamTest, ReportsDeltasAndTheEnd) {
  router_.Reply(Failing(Gone()));
  router_.Reply({{Piece("a"), Piece(""), Piece("b"), Last("c")}, absl::OkStatus()});
  Report report;
  auto stream = client_->Generate(Ask("r"), report.callbacks());
  client_.reset();  // which the stream may outlive
  ASSERT_TRUE(report.ended.WaitForNotificationWithTimeout(kScriptPatience));
  stream.reset();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(report.text, "abc");
  EXPECT_EQ(report.completion.text(), "abc");
  EXPECT_EQ(report.completion.request_id, "r");
  EXPECT_EQ(report.done, 1);
  EXPECT_EQ(report.threads.count(std::this_thread::get_id()), 0u);
}

TEST_F(CallbackStreamTest, ReportsAFailure) {
  router_.Reply({{Piece("a")}, Gone()});
  Report report;
  const auto stream = client_->Generate(Ask("r"), report.callbacks());
  ASSERT_TRUE(report.ended.WaitForNotificationWithTimeout(kScriptPatience));
  EXPECT_EQ(ErrorReason(report.status), "WORKER_LOST");
  EXPECT_EQ(ErrorRequestId(report.status), "r");
  EXPECT_EQ(report.completion.text(), "a");
}

TEST_F(CallbackStreamTest, TheDestructorCancelsAndWaits) {
  router_.Reply({{Piece("a")}, absl::OkStatus(), /*hangs=*/true});
  Report report;
  client_->Generate(Ask(), report.callbacks()).reset();
  EXPECT_EQ(report.done, 1);
  EXPECT_EQ(report.status.code(), absl::StatusCode::kCancelled);
}

TEST_F(CallbackStreamTest, CancelInsideACallback) {
  router_.Reply({{Piece("a")}, absl::OkStatus(), /*hangs=*/true});
  Report report;
  StreamCallbacks callbacks = report.callbacks();
  std::unique_ptr<CallbackStream> stream;
  absl::Notification made;
  callbacks.on_delta = [&](const Delta&) {
    made.WaitForNotification();
    stream->Cancel();
  };
  stream = client_->Generate(Ask(), std::move(callbacks));
  made.Notify();
  ASSERT_TRUE(report.ended.WaitForNotificationWithTimeout(kScriptPatience));
  EXPECT_EQ(report.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(router_.AwaitCancelled(1));
}

// The destructor must not wait for the callback that it is called in.
TEST_F(CallbackStreamTest, DestructionInsideEitherCallback) {
  for (const bool at_end : {false, true}) {
    router_.Reply({{Piece("a"), Last("b")}, absl::OkStatus(), /*hangs=*/!at_end});
    Report report;
    StreamCallbacks callbacks = report.callbacks();
    auto stream = std::make_shared<std::unique_ptr<CallbackStream>>();
    auto made = std::make_shared<absl::Notification>();
    const auto destroy = [stream, made] {
      made->WaitForNotification();
      stream->reset();
    };
    if (at_end) {
      callbacks.on_done = [done = callbacks.on_done, destroy](const absl::Status& status,
                                                              const Completion& completion) {
        destroy();
        done(status, completion);
      };
    } else {
      callbacks.on_delta = [destroy](const Delta&) { destroy(); };
    }
    *stream = client_->Generate(Ask(), std::move(callbacks));
    made->Notify();
    ASSERT_TRUE(report.ended.WaitForNotificationWithTimeout(kScriptPatience));
    EXPECT_EQ(report.done, 1);
    EXPECT_EQ(report.status.ok(), at_end) << report.status;
  }
}

// Whatever comes first, there is one end, and it is one of these two.
TEST_F(CallbackStreamTest, CancelRacesWithTheAnswer) {
  for (int round = 0; round < 60; ++round) {
    std::vector<v1::GenerateResponse> messages(20, Piece("x"));
    messages.push_back(Last("x"));
    router_.Reply({messages, absl::OkStatus()});
    Report report;
    StreamCallbacks callbacks = report.callbacks();
    std::atomic<int> arrived{0};
    callbacks.on_delta = [&, on_delta = callbacks.on_delta](const Delta& delta) {
      on_delta(delta);
      ++arrived;
    };
    auto stream = client_->Generate(Ask(), std::move(callbacks));
    std::vector<std::thread> cancellers;
    for (int i = 0; i < 2; ++i) {
      cancellers.emplace_back([&, wanted = round % 22] {
        while (arrived < wanted && !report.ended.HasBeenNotified()) std::this_thread::yield();
        stream->Cancel();
      });
    }
    for (std::thread& canceller : cancellers) canceller.join();
    stream.reset();
    EXPECT_EQ(report.done, 1);
    EXPECT_EQ(report.text, report.completion.text());
    EXPECT_EQ(report.status.ok(), report.text.size() == 21) << report.status;
    EXPECT_TRUE(report.status.ok() || absl::IsCancelled(report.status)) << report.status;
  }
}

}  // namespace
}  // namespace baton::client
