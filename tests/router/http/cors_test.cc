#include "router/http/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/security/api_keys.h"
#include "tests/router/http/http_router_test.h"
#include "tests/testing/http_client.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

using ::baton::internal::v1::DecodeResponse;
using ::baton::testing::DecodeCall;
using ::baton::testing::HttpClient;
using ::baton::testing::HttpReply;
using ::baton::testing::Ids;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr char kOrigin[] = "https://app.example";
constexpr char kAllowed[] = "Access-Control-Allow-Origin: https://app.example\r\n";

HttpRequest From(const std::string& origin, const std::string& method = "GET") {
  HttpRequest request;
  request.method = method;
  if (!origin.empty()) request.headers = {{"origin", origin}};
  return request;
}

HttpRequest PreflightFrom(const std::string& origin) {
  HttpRequest request = From(origin, "OPTIONS");
  request.headers.emplace_back("access-control-request-method", "POST");
  return request;
}

TEST(CorsTest, WithoutOriginsThereIsNone) {
  const Cors cors({});
  EXPECT_THAT(cors.HeadersFor(From(kOrigin)), IsEmpty());
  EXPECT_FALSE(cors.Preflight(PreflightFrom(kOrigin)).has_value());
}

TEST(CorsTest, AnOriginIsComparedWhole) {
  const Cors cors({"https://other.example", kOrigin});
  EXPECT_THAT(cors.HeadersFor(From(kOrigin)),
              ElementsAre(Pair("Vary", "Origin"), Pair("Access-Control-Allow-Origin", kOrigin),
                          Pair("Access-Control-Expose-Headers", HasSubstr("retry-after-ms"))));
  EXPECT_TRUE(cors.Preflight(PreflightFrom(kOrigin)).has_value());
  for (const std::string origin :
       {"", "null", "http://app.example", "https://app.example:8443", "https://app.example.evil",
        "https://evil.app.example", "https://app.exampl", "*"}) {
    EXPECT_THAT(cors.HeadersFor(From(origin)), ElementsAre(Pair("Vary", "Origin"))) << origin;
    EXPECT_FALSE(cors.Preflight(PreflightFrom(origin)).has_value()) << origin;
  }
}

TEST(CorsTest, TheStarAllowsAllOrigins) {
  const Cors cors({"*"});
  EXPECT_THAT(cors.HeadersFor(From("null")),
              ::testing::Contains(Pair("Access-Control-Allow-Origin", "*")));
  EXPECT_TRUE(cors.Preflight(PreflightFrom("http://anywhere")).has_value());
}

TEST(CorsTest, OnlyAPreflightIsAnsweredAsOne) {
  const Cors cors({kOrigin});
  EXPECT_FALSE(cors.Preflight(From(kOrigin, "OPTIONS")).has_value());
  HttpRequest post = PreflightFrom(kOrigin);
  post.method = "POST";
  EXPECT_FALSE(cors.Preflight(post).has_value());
}

class CorsRouterTest : public HttpRouterTest {
 protected:
  void StartFor(std::vector<std::string> origins) {
    Start([&](Options* options) { options->http_cors_origins = std::move(origins); });
  }
  const std::string from_ = absl::StrCat("Origin: ", kOrigin, "\r\n");
};

TEST_F(CorsRouterTest, APreflightIsAnsweredWithoutAKeyAndTheConnectionLivesOn) {
  const testing::ModelDir dir;
  const security::NewKey key = *security::MakeApiKey("ops", /*admin=*/true);
  dir.Write("keys", key.line + "\n");
  ChannelSecurity of_test;
  of_test.headers = [&] { return CallHeaders{{"authorization", "Bearer " + key.key}}; };
  cluster_ = std::make_unique<testing::FakeCluster>(
      1, 1,
      [&](Options* options) {
        options->http_listen = "127.0.0.1:0";
        options->http_cors_origins = {kOrigin};
        options->api_keys = dir.PathOf("keys");
      },
      Clock::Real(), of_test);
  HttpClient client(address());
  client.Send(absl::StrCat("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\n", from_,
                           "Access-Control-Request-Method: POST\r\n"
                           "Access-Control-Request-Headers: authorization,content-type\r\n\r\n"));
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("HTTP/1.1 204 No Content\r\n"));
  EXPECT_THAT(head, HasSubstr(kAllowed));
  EXPECT_THAT(head, HasSubstr("Access-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\n"));
  EXPECT_THAT(head, HasSubstr("Access-Control-Allow-Headers: "
                              "authorization, content-type, x-request-id, *\r\n"));
  EXPECT_THAT(head, HasSubstr("Access-Control-Max-Age: 7200\r\n"));
  EXPECT_THAT(head, HasSubstr("Vary: Origin\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("Content-Length")));
  // The request itself needs a key, and its page may read why it is refused.
  client.Post("/v1/chat/completions", "{}", from_);
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 401) << reply.body;
  EXPECT_EQ(reply.Header("Access-Control-Allow-Origin"), kOrigin);
  EXPECT_FALSE(reply.Header("x-request-id").empty());
}

TEST_F(CorsRouterTest, StreamsWholeAnswersAndErrorsHaveTheHeaders) {
  StartFor({kOrigin});
  HttpClient client(address());
  client.Post("/v1/completions", R"({"prompt": "p", "stream": true})", from_);
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.Finish(Ids("a"), DecodeResponse::FINISH_LENGTH);
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr(kAllowed));
  client.Get("/v1/models", from_);
  HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.head, HasSubstr(kAllowed));
  EXPECT_EQ(reply.Header("Access-Control-Expose-Headers"),
            "x-request-id, request-id, x-baton-ignored, Retry-After, retry-after-ms");
  client.Get("/v1/models", "Origin: https://other.example\r\n");
  reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.head, Not(HasSubstr("Access-Control")));
  EXPECT_EQ(reply.Header("Vary"), "Origin");
  // What the server refuses before the request is read to its end.
  client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: a\r\n", from_,
                           "Content-Length: 99999999999\r\n\r\n"));
  reply = client.Read();
  EXPECT_EQ(reply.status, 413);
  EXPECT_THAT(reply.head, HasSubstr(kAllowed));
}

TEST_F(CorsRouterTest, WithoutTheOptionNothingIsAllowed) {
  StartFor({});
  HttpClient client(address());
  client.Send(absl::StrCat("OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\n", from_,
                           "Access-Control-Request-Method: GET\r\n\r\n"));
  HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 405);
  EXPECT_THAT(reply.head, Not(HasSubstr("Access-Control")));
  EXPECT_THAT(reply.head, Not(HasSubstr("Vary")));
}

TEST(CorsOptionsTest, OriginsAreCheckedAtTheStart) {
  const auto check = [](std::vector<std::string> origins) {
    Options options;
    options.model_dir = "m";
    options.decode_workers = {"127.0.0.1:1"};
    options.http_cors_origins = std::move(origins);
    return Validate(&options);
  };
  EXPECT_TRUE(check({"*"}).ok());
  EXPECT_TRUE(check({"https://app.example", "http://localhost:3000", "http://127.0.0.1:8080",
                     "http://[::1]:81", "https://app.example:80", "chrome-extension://abc"})
                  .ok());
  for (const std::string origin :
       {"", "app.example", "https://", "https://app.example/", "https://App.example",
        "https://app.example:443", "http://[::1]:80", "https://app.example:", "HTTPS://app.example",
        "https://*.example", "https://a b", "https://user@app.example", "null"}) {
    const absl::Status status = check({"https://app.example", origin});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << origin;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("--http-cors-origins: \"", origin, "\" given")));
  }
}

}  // namespace
}  // namespace baton::router
