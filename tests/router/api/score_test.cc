// Scoring calls through a real router to scripted prefill workers: the order of a stream, workers
// that accept items and never answer, and every way to send a bad call.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/testing/fake_cluster.h"

namespace baton::router {
namespace {

using ::baton::testing::FakeCluster;
using ::baton::testing::ScoreItemsCall;
using ::testing::HasSubstr;

v1::ScoreRequest Judge(int items) {
  v1::ScoreRequest request;
  request.set_prefix("rubric: ");
  for (int i = 0; i < items; ++i) request.add_items(absl::StrCat("mail ", i));
  request.add_labels(" yes");
  request.add_labels(" no");
  return request;
}

absl::StatusOr<v1::ScoreResponse> Score(FakeCluster& cluster, const v1::ScoreRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + baton::testing::kPatience));
  v1::ScoreResponse response;
  const grpc::Status status =
      v1::InferenceService::NewStub(cluster.channel())->Score(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

// Two threads of gRPC may have two messages of the stream at a time: one reads on after a read, the
// other after a write. Their items are taken in the order in which they were read.
TEST(ScoreTest, ResultsComeInTheOrderOfTheMessages) {
  FakeCluster cluster(2);
  constexpr int kItems = 6000;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + baton::testing::kPatience));
  auto stream = v1::InferenceService::NewStub(cluster.channel())->ScoreStream(&context);
  std::thread writer([&stream] {
    v1::ScoreStreamRequest message;
    *message.mutable_settings() = Judge(0);
    message.set_in_order(true);
    for (int i = 0; i < kItems; ++i) {
      v1::ScoreItem* item = message.add_items();
      item->set_id(static_cast<uint64_t>(i));
      item->set_text("m");
      if (!stream->Write(message)) break;
      message.Clear();
    }
    stream->WritesDone();
  });
  v1::ScoreStreamResponse response;
  std::vector<uint64_t> ids;
  while (stream->Read(&response)) {
    for (const v1::ItemScore& item : response.items()) ids.push_back(item.id());
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(ids.size(), static_cast<size_t>(kItems));
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], i);
}

TEST(ScoreTest, TheBytesOfAStreamsItemsAreBoundedUntilTheirResultsAreSent) {
  FakeCluster cluster(1, 1, [](Options* options) { options->max_inflight_request_bytes = 2000; });
  absl::Notification asked, may_answer;
  cluster.prefill(0)->SetScoreReply([&](ScoreItemsCall call) {
    if (!asked.HasBeenNotified()) {
      asked.Notify();
      may_answer.WaitForNotification();
    }
    call.ScoreAll();
  });
  const auto stub = v1::InferenceService::NewStub(cluster.channel());
  grpc::ClientContext context, refused_context;
  for (grpc::ClientContext* one : {&context, &refused_context}) {
    one->set_deadline(absl::ToChronoTime(absl::Now() + baton::testing::kPatience));
  }
  v1::ScoreStreamRequest settings, items;
  *settings.mutable_settings() = Judge(0);
  items.add_items()->set_text("m");
  // The router does not know this field.
  items.GetReflection()->MutableUnknownFields(&items)->AddLengthDelimited(500,
                                                                          std::string(1500, 'x'));
  auto stream = stub->ScoreStream(&context);
  ASSERT_TRUE(stream->Write(settings));
  ASSERT_TRUE(stream->Write(items));
  asked.WaitForNotification();

  v1::ScoreRequest large = Judge(0);
  large.add_items("m");
  large.GetReflection()->MutableUnknownFields(&large)->AddLengthDelimited(500,
                                                                          std::string(800, 'x'));
  EXPECT_EQ(ErrorReason(Score(cluster, large).status()), "TOO_MANY_REQUEST_BYTES");
  auto refused = stub->ScoreStream(&refused_context);
  ASSERT_TRUE(refused->Write(settings));
  refused->Write(items);
  v1::ScoreStreamResponse response;
  while (refused->Read(&response)) {
  }
  EXPECT_EQ(ErrorReason(FromGrpcStatus(refused->Finish())), "TOO_MANY_REQUEST_BYTES");

  may_answer.Notify();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.items_size(), 1);
  // The stream goes on, and holds no more than its settings once that write has ended.
  const absl::Time patience = absl::Now() + baton::testing::kPatience;
  absl::Status second;
  do {
    second = Score(cluster, large).status();
  } while (ErrorReason(second) == "TOO_MANY_REQUEST_BYTES" && absl::Now() < patience);
  EXPECT_TRUE(second.ok()) << second;
  stream->WritesDone();
  while (stream->Read(&response)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(ScoreTest, ItemsOfAWorkerThatNeverAnswersGoToAnother) {
  FakeCluster cluster(2, 1, [](Options* options) { options->stall_timeout_ms = 500; });
  std::atomic<int> stalls{0};
  absl::Notification first_asked;
  // Of both workers: the first to be asked is silent, though it reports its load.
  for (int i = 0; i < 2; ++i) {
    cluster.prefill(i)->SetScoreReply([&](ScoreItemsCall call) {
      if (stalls++ > 0) return call.ScoreAll();
      call.Score(0);
    });
  }
  const auto scores = Score(cluster, Judge(5));
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(scores->usage().failed_items(), 0);
  EXPECT_EQ(scores->usage().items(), 5);
  EXPECT_GE(stalls, 2) << "a slow second worker may look stalled, too";
}

TEST(ScoreTest, AWorkerThatSendsHeartbeatsIsAwaited) {
  FakeCluster cluster(1, 1, [](Options* options) { options->stall_timeout_ms = 2'000; });
  std::atomic<int> calls{0};
  std::thread worker;
  cluster.prefill(0)->SetScoreReply([&](ScoreItemsCall call) {
    if (calls++ > 0) return call.ScoreAll();
    worker = std::thread([call]() mutable {
      internal::v1::ScoredItem heartbeat;
      heartbeat.set_heartbeat(true);
      for (int i = 0; i < 50; ++i) {
        call.stream->Send(heartbeat);
        absl::SleepFor(absl::Milliseconds(50));  // the wait is what is tested
      }
      call.ScoreAll();
    });
  });
  const auto scores = Score(cluster, Judge(2));
  worker.join();
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(calls, 1);
}

TEST(ScoreTest, ABadItemFailsAloneAndABadCallWhole) {
  FakeCluster cluster;
  v1::ScoreRequest request = Judge(2);
  request.add_items("");
  request.add_items(std::string(200, 'x'));
  request.add_items(std::string("a\0b", 3));
  const auto scores = Score(cluster, request);
  ASSERT_TRUE(scores.ok()) << scores.status();
  for (const int good : {0, 1, 2, 4}) {
    EXPECT_FALSE(scores->items(good).has_error()) << scores->items(good).ShortDebugString();
  }
  EXPECT_EQ(scores->items(3).error().reason(), "PROMPT_TOO_LONG");
  EXPECT_THAT(scores->items(3).error().message(), HasSubstr("context of 128 tokens"));
  EXPECT_EQ(scores->items(4).prompt_tokens(), 8 + 3) << "NUL is a byte like others";
  struct Row {
    const char* reason;
    const char* in_message;
    std::function<void(v1::ScoreRequest&)> spoil;
  };
  const std::vector<Row> rows = {
      {"OUT_OF_RANGE", "1 to 64", [](auto& r) { r.clear_labels(); }},
      {"OUT_OF_RANGE", "10002",
       [](auto& r) {
         for (int i = 0; i < 10'000; ++i) r.add_labels(absl::StrCat(i));
       }},
      {"EMPTY_LABEL", "empty", [](auto& r) { r.set_labels(0, ""); }},
      {"DUPLICATE_LABEL", "\" no\" is given twice", [](auto& r) { r.set_labels(0, " no"); }},
      {"OUT_OF_RANGE", "1025 bytes", [](auto& r) { r.set_labels(0, std::string(1025, 'a')); }},
      {"NOT_UTF8", "labels", [](auto& r) { r.set_labels(0, "\xff"); }},
      {"NOT_UTF8", "items", [](auto& r) { r.set_items(0, "\xc3"); }},
      {"NOT_UTF8", "prefix", [](auto& r) { r.set_prefix("\xff"); }},
      {"OUT_OF_RANGE", "1 to 4096", [](auto& r) { r.clear_items(); }},
      {"OUT_OF_RANGE", "priority", [](auto& r) { r.set_priority(static_cast<v1::Priority>(7)); }},
      {"BAD_TENANT", "printable", [](auto& r) { r.set_tenant("a\nb"); }},
      {"MODEL_NOT_FOUND", "gpt-9", [](auto& r) { r.set_model("gpt-9"); }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.in_message);
    v1::ScoreRequest bad = Judge(2);
    row.spoil(bad);
    const absl::Status refused = Score(cluster, bad).status();
    EXPECT_EQ(ErrorReason(refused), row.reason);
    EXPECT_THAT(absl::StrCat(refused.message(), ErrorField(refused)), HasSubstr(row.in_message));
  }
}

}  // namespace
}  // namespace baton::router
