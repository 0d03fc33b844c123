// /v1/embeddings and /v1/rerank over scripted workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "router/http/openai_embeddings.h"
#include "router/http/rerank.h"
#include "tests/router/http/http_router_test.h"
#include "tests/testing/http_client.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

using ::baton::testing::HttpClient;
using ::baton::testing::HttpReply;
using ::baton::testing::ScoreItemsCall;
using Json = nlohmann::json;

constexpr char kEmbeddings[] = "/v1/embeddings";
constexpr char kRerank[] = "/v1/rerank";

class ItemEndpointsTest : public HttpRouterTest {
 protected:
  HttpReply Post(const std::string& path, const std::string& body) {
    HttpClient client(address());
    client.Post(path, body, "X-Request-Id: me\r\n");
    return client.Read();
  }
  // With a template that has the query and the document alone.
  void StartRanking() {
    dir_.Write("prompt", "{query}: {document}");
    Start([this](Options* options) {
      options->rerank_template = dir_.PathOf("prompt");
      options->rerank_labels = "y,n";
    });
  }
  void ExpectError(const HttpReply& reply, int status, const std::string& param,
                   const std::string& code) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], param.empty() ? Json() : Json(param)) << reply.body;
    EXPECT_EQ(error["code"], code) << reply.body;
    EXPECT_EQ(reply.Header("x-request-id"), "me");
  }
  testing::ModelDir dir_;
};

TEST_F(ItemEndpointsTest, EachInputHasItsVector) {
  Start();
  HttpReply reply = Post(kEmbeddings, R"({"model": "tiny", "input": ["a b", "c"], "user": "u"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("x-request-id"), "me");
  const Json json = Json::parse(reply.body);
  EXPECT_EQ(json["object"], "list");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["usage"], Json::parse(R"({"prompt_tokens": 4, "total_tokens": 4})"));
  ASSERT_EQ(json["data"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(json["data"][i]["object"], "embedding");
    EXPECT_EQ(json["data"][i]["index"], i);
    const auto vector = json["data"][i]["embedding"].get<std::vector<float>>();
    EXPECT_EQ(vector, (std::vector<float>{3 / 13.f, 4 / 13.f, 0, 12 / 13.f})) << "to the bit";
  }
}

TEST_F(ItemEndpointsTest, Base64IsThatOfLittleEndianFloats) {
  Start();
  const HttpReply reply =
      Post(kEmbeddings, R"({"input": [1, 2], "encoding_format": "base64", "dimensions": 2})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = Json::parse(reply.body);
  ASSERT_EQ(json["data"].size(), 1u) << "one input of two tokens";
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(json["data"][0]["embedding"].get<std::string>(), &bytes));
  ASSERT_EQ(bytes.size(), 8u);
  float values[2];
  std::memcpy(values, bytes.data(), bytes.size());
  EXPECT_EQ(values[0], 0.6f);
  EXPECT_EQ(values[1], 0.8f);
}

TEST_F(ItemEndpointsTest, BadEmbeddingsRequestsNameTheField) {
  Start();
  const struct {
    const char* body;
    const char* param;
    const char* code;
  } cases[] = {
      {R"({"input": []})", "input", "wrong_type"},
      {R"({"input": ""})", "input", "empty_prompt"},
      {R"({"input": [[]]})", "input[0]", "wrong_type"},
      {R"({"input": {"text": "x"}})", "input", "wrong_type"},
      {R"({"input": [1, "a"]})", "input", "wrong_type"},
      {R"({"input": [999]})", "input", "out_of_range"},
      {R"({"model": "tiny"})", "input", "missing_field"},
      {R"({"input": "a", "model": "other"})", "model", "model_not_found"},
      {R"({"input": "a", "dimensions": 0})", "dimensions", "out_of_range"},
      {R"({"input": "a", "dimensions": 5})", "dimensions", "out_of_range"},
      {R"({"input": "a", "dimensions": "x"})", "dimensions", "wrong_type"},
      {R"({"input": "a", "encoding_format": "int8"})", "encoding_format", "unsupported_field"},
      {R"({"input": "a", "truncate": true})", "truncate", "unknown_field"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.body);
    const int status = std::string(bad.code) == "model_not_found" ? 404 : 400;
    ExpectError(Post(kEmbeddings, bad.body), status, bad.param, bad.code);
  }
  ExpectError(Post(kEmbeddings, "[1]"), 400, "", "malformed_json");
  ExpectError(Post(kEmbeddings, absl::StrCat(R"({"input": ")", std::string(300, 'x'), "\"}")), 400,
              "input", "context_length_exceeded");
  HttpClient client(address());
  client.Send(absl::StrCat("GET ", kEmbeddings, " HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 405);
}

// A request that is alone always fits.
TEST_F(ItemEndpointsTest, AnAnswerThatHasNoRoomBesideOthersIsRefusedBeforeItIsComputed) {
  Start([](Options* options) { options->max_inflight_request_bytes = 600; });
  absl::Notification asked;
  std::optional<ScoreItemsCall> first;
  cluster_->prefill(0)->SetScoreReply([&](ScoreItemsCall call) {
    first = std::move(call);
    asked.Notify();
  });
  HttpClient client(address());
  client.Post(kEmbeddings, R"({"input": "first"})");
  asked.WaitForNotification();
  std::string body = R"({"input": ["a")";
  for (int i = 0; i < 30; ++i) body += ",\"a\"";
  ExpectError(Post(kEmbeddings, body + "]}"), 429, "", "too_many_request_bytes");
  first->ScoreAll();
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ItemEndpointsTest, DocumentsComeWithTheBestFirst) {
  StartRanking();
  cluster_->prefill(0)->SetScoreReply([](ScoreItemsCall call) {
    for (int i = 0; i < call.request.items_size(); ++i) {
      internal::v1::ScoredItem result;
      result.set_item(i);
      // "good" has the label "y" for certain, "fair" in half of the cases.
      const bool good = call.request.items(i).tokens(0) == 'g';
      const bool fair = call.request.items(i).tokens(0) == 'f';
      result.add_labels()->add_logprobs(good ? 0 : fair ? -1 : -9);
      result.add_labels()->add_logprobs(good ? -9 : fair ? -1 : 0);
      call.stream->Send(result);
    }
    call.stream->End(grpc::Status::OK);
  });
  const std::string query =
      R"({"query": "which", "documents": ["bad", {"text": "fair"}, "good", "far"])";
  HttpReply reply = Post(kRerank, query + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  Json json = Json::parse(reply.body);
  EXPECT_EQ(json["id"], "me");
  ASSERT_EQ(json["results"].size(), 4u);
  EXPECT_EQ(json["results"][0]["index"], 2);
  EXPECT_EQ(json["results"][0]["document"]["text"], "good");
  EXPECT_EQ(json["results"][1]["index"], 1) << "equal scores keep their order";
  EXPECT_EQ(json["results"][1]["relevance_score"], 0.5);
  EXPECT_EQ(json["results"][2]["index"], 3);
  EXPECT_EQ(json["results"][3]["index"], 0);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4 * 7 + 3 + 4 + 4 + 3);
  reply = Post(kRerank, query + R"(, "top_n": 1, "return_documents": false})");
  json = Json::parse(reply.body);
  ASSERT_EQ(json["results"].size(), 1u) << reply.body;
  EXPECT_EQ(json["results"][0]["index"], 2);
  EXPECT_FALSE(json["results"][0].contains("document"));
}

TEST_F(ItemEndpointsTest, BadRerankRequestsNameTheField) {
  StartRanking();
  const struct {
    const char* body;
    const char* param;
    const char* code;
  } cases[] = {
      {R"({"documents": ["a"]})", "query", "missing_field"},
      {R"({"query": "a"})", "documents", "missing_field"},
      {R"({"query": "a", "documents": []})", "documents", "out_of_range"},
      {R"({"query": "a", "documents": "x"})", "documents", "wrong_type"},
      {R"({"query": "a", "documents": [1]})", "documents[0]", "wrong_type"},
      {R"({"query": "a", "documents": ["x", {"image": "y"}]})", "documents[1].image",
       "unknown_field"},
      {R"({"query": "a", "documents": [{}]})", "documents[0].text", "missing_field"},
      {R"({"query": "a", "documents": ["x"], "top_n": -1})", "top_n", "out_of_range"},
      {R"({"query": "a", "documents": ["x"], "max_chunks": 3})", "max_chunks", "unknown_field"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.body);
    ExpectError(Post(kRerank, bad.body), 400, bad.param, bad.code);
  }
  ExpectError(Post(kRerank, absl::StrCat(R"({"query": "a", "documents": ["b", ")",
                                         std::string(300, 'x'), "\"]}")),
              400, "documents[1]", "context_length_exceeded");
  ExpectError(Post(kRerank, "nonsense"), 400, "", "malformed_json");
}

TEST_F(ItemEndpointsTest, ARouterWithoutATemplateDoesNotRank) {
  Start();
  ExpectError(Post(kRerank, R"({"query": "a", "documents": ["b"]})"), 400, "",
              "not_a_rerank_model");
}

}  // namespace
}  // namespace baton::router
