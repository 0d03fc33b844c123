#include "router/http/response_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/json/json.h"
#include "router/http/responses_request.h"
#include "tests/router/fake_clock.h"

namespace baton::router {
namespace {

class ResponseStoreTest : public ::testing::Test {
 protected:
  // Room for three responses of kResponse bytes.
  static constexpr size_t kResponse = 10'000;
  ResponseStoreTest()
      : store_(std::make_shared<ResponseStore>(clock_, 3 * (kResponse + 1'000), absl::Seconds(100),
                                               [this](const ResponseStore::Change& change) {
                                                 held_ = change;
                                                 evicted_ += change.evicted;
                                                 expired_ += change.expired;
                                               })) {}
  void Put(const std::string& tenant, const std::string& id, size_t bytes = kResponse) {
    store_->Put(tenant, id, {std::string(bytes, 'r'), "[]"});
  }
  bool Has(const std::string& id) { return store_->Find("t", id) != nullptr; }

  testing::FakeClock clock_;
  ResponseStore::Change held_;
  int evicted_ = 0;
  int expired_ = 0;
  std::shared_ptr<ResponseStore> store_;
};

TEST_F(ResponseStoreTest, WhatWasUsedLeastRecentlyGoes) {
  for (const char* id : {"a", "b", "c"}) Put("t", id);
  EXPECT_TRUE(Has("a"));
  Put("t", "d");
  EXPECT_FALSE(Has("b"));
  EXPECT_TRUE(Has("a") && Has("c") && Has("d"));
  EXPECT_GE(store_->bytes(), static_cast<int64_t>(3 * kResponse));
  // One that never fits takes no other's place.
  Put("t", "huge", 4 * kResponse);
  EXPECT_FALSE(Has("huge"));
  EXPECT_TRUE(Has("a") && Has("c") && Has("d"));
  EXPECT_EQ(held_.responses, 3);
  EXPECT_EQ(held_.bytes, store_->bytes());
  EXPECT_EQ(evicted_, 1);
  for (const char* id : {"a", "c", "d"}) EXPECT_TRUE(store_->Erase("t", id));
  EXPECT_EQ(store_->bytes(), 0);
  EXPECT_EQ(held_.responses, 0);
  EXPECT_EQ(held_.bytes, 0);
  EXPECT_EQ(evicted_, 1) << "what a client deletes is not counted";
}

TEST_F(ResponseStoreTest, TenantsHaveTheirOwn) {
  Put("t", "a");
  EXPECT_EQ(store_->Find("other", "a"), nullptr);
  EXPECT_EQ(store_->Find("", "a"), nullptr);
  EXPECT_FALSE(store_->Erase("other", "a"));
  EXPECT_TRUE(Has("a"));
}

TEST_F(ResponseStoreTest, AResponseThatIsNotUsedExpires) {
  Put("t", "a");
  Put("t", "b");
  clock_.Advance(absl::Seconds(60));
  EXPECT_TRUE(Has("a"));
  clock_.Advance(absl::Seconds(60));
  EXPECT_TRUE(Has("a"));
  EXPECT_FALSE(Has("b"));
  EXPECT_LT(store_->bytes(), static_cast<int64_t>(2 * kResponse));
  EXPECT_EQ(expired_, 1);
  clock_.Advance(absl::Seconds(101));
  EXPECT_EQ(store_->bytes(), 0);
  EXPECT_EQ(held_.responses, 0);
  EXPECT_EQ(expired_, 2);
  EXPECT_EQ(evicted_, 0);
}

class BindToStoreTest : public ResponseStoreTest {
 protected:
  static OpenAiRequest Parsed(const std::string& members) {
    return *ParseResponses(absl::StrCat("{", members, "}"));
  }
  static std::string Messages(const OpenAiRequest& request) {
    return json::ToText(request.conversation.messages);
  }
};

TEST_F(BindToStoreTest, AConversationGrowsWithoutItsInstructions) {
  OpenAiRequest first = Parsed(R"("instructions": "one", "input": "q")");
  ASSERT_TRUE(BindToStore(store_, "t", first).ok());
  ASSERT_TRUE(first.responses->keep);
  EXPECT_GT(first.responses->kept_bytes, 0);
  first.responses->keep("resp_1", "{}",
                        *json::Parse(R"([{"role": "assistant", "content": "a"}])", "answer"));
  OpenAiRequest second = Parsed(
      R"("instructions": "two", "input": "r", "previous_response_id": "resp_1", "store": false)");
  const int64_t bytes = second.json_bytes;
  ASSERT_TRUE(BindToStore(store_, "t", second).ok());
  EXPECT_FALSE(second.responses->keep);
  EXPECT_GT(second.json_bytes, bytes);
  EXPECT_EQ(Messages(second),
            R"([{"role":"system","content":"two"},{"role":"user","content":"q"},)"
            R"({"role":"assistant","content":"a"},{"role":"user","content":"r"}])");
  // The same turn again, and another one behind it.
  OpenAiRequest third = Parsed(R"("input": [], "previous_response_id": "resp_1")");
  ASSERT_TRUE(BindToStore(store_, "t", third).ok());
  third.responses->keep("resp_2", "{}", *json::Parse(R"([{"role": "assistant"}])", "answer"));
  EXPECT_EQ(store_->Find("t", "resp_2")->messages,
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"},)"
            R"({"role":"assistant"}])");
}

TEST_F(BindToStoreTest, AnUnknownResponseIsNamed) {
  OpenAiRequest request = Parsed(R"("input": "q", "previous_response_id": "resp_1")");
  Put("other", "resp_1");
  const absl::Status error = BindToStore(store_, "t", request);
  EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReason(error), "PREVIOUS_RESPONSE_NOT_FOUND");
  EXPECT_EQ(ErrorField(error), "previous_response_id");
}

TEST_F(BindToStoreTest, AStoreWithoutRoomStoresNothing) {
  const auto none = std::make_shared<ResponseStore>(clock_, 0, absl::Seconds(1),
                                                    [](const ResponseStore::Change&) {});
  OpenAiRequest request = Parsed(R"("input": "q", "store": true)");
  ASSERT_TRUE(BindToStore(none, "t", request).ok());
  EXPECT_FALSE(request.responses->keep);
}

TEST_F(ResponseStoreTest, AResponseIsReadAndDeletedByItsId) {
  store_->Put("t", "resp_1", {R"({"id":"resp_1"})", "[]"});
  EXPECT_EQ(StoredResponse(*store_, "t", "GET", "resp_1").body, R"({"id":"resp_1"})");
  EXPECT_EQ(StoredResponse(*store_, "other", "GET", "resp_1").status, 404);
  EXPECT_EQ(StoredResponse(*store_, "other", "DELETE", "resp_1").status, 404);
  EXPECT_EQ(StoredResponse(*store_, "t", "POST", "resp_1").status, 405);
  const HttpResponse deleted = StoredResponse(*store_, "t", "DELETE", "resp_1");
  EXPECT_EQ(deleted.body, R"({"id":"resp_1","object":"response","deleted":true})");
  EXPECT_EQ(StoredResponse(*store_, "t", "GET", "resp_1").status, 404);
}

}  // namespace
}  // namespace baton::router
