// A router with API keys, over gRPC and HTTP: what each caller may do, and what workers see of its
// tenant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/generic_call.h"
#include "tests/testing/http_client.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

using ::baton::testing::CallOnce;
using ::baton::testing::FakeCluster;
using ::baton::testing::HttpClient;
using ::baton::testing::Ids;
using ::testing::HasSubstr;
using DecodeResponse = internal::v1::DecodeResponse;

class ApiKeysTest : public ::testing::Test {
 protected:
  ApiKeysTest() {
    dir_.Write("keys", absl::StrCat(a_.line, "\n", b_.line, " max-concurrent-requests=1\n",
                                    admin_.line, "\n"));
    cluster_ = std::make_unique<FakeCluster>(
        1, 1,
        [&](Options* options) {
          options->api_keys = dir_.PathOf("keys");
          options->http_listen = "127.0.0.1:0";
        },
        Clock::Real(), Security("Bearer " + admin_.key));
  }
  static ChannelSecurity Security(const std::string& authorization) {
    ChannelSecurity security;
    security.headers = [authorization] { return CallHeaders{{"authorization", authorization}}; };
    return security;
  }
  std::shared_ptr<grpc::Channel> Channel(const std::string& authorization = "") {
    const std::string& address = cluster_->server().address();
    if (authorization.empty()) return MakeChannel(address, kClientChannel);
    return MakeChannel(address, kClientChannel, Security(authorization));
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const security::NewKey& key) {
    return Channel("Bearer " + key.key);
  }

  static std::vector<std::string> Methods() {
    std::vector<std::string> methods =
        testing::MethodsOf(v1::GenerateRequest::descriptor()->file());
    const auto admin = testing::MethodsOf(v1::ListWorkersRequest::descriptor()->file());
    methods.insert(methods.end(), admin.begin(), admin.end());
    return methods;
  }

  // What the decode worker gets for a request of the key's owner.
  internal::v1::DecodeRequest Decoded(const security::NewKey& key, const std::string& tenant,
                                      const std::string& salt) {
    v1::GenerateOnceRequest once;
    once.mutable_request()->set_text("hello");
    once.mutable_request()->set_tenant(tenant);
    once.mutable_request()->set_cache_salt(salt);
    internal::v1::DecodeRequest sent;
    absl::Mutex mutex;
    cluster_->decode(0)->SetReply([&](testing::DecodeCall call) {
      absl::MutexLock lock(&mutex);
      sent = call.request;
      call.Finish(Ids("!"), DecodeResponse::FINISH_LENGTH);
    });
    grpc::ClientContext context;
    v1::GenerateOnceResponse response;
    const grpc::Status status =
        v1::InferenceService::NewStub(ChannelOf(key))->GenerateOnce(&context, once, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    absl::MutexLock lock(&mutex);
    return sent;
  }

  const security::NewKey a_ = *security::MakeApiKey("a", /*admin=*/false);
  const security::NewKey b_ = *security::MakeApiKey("b", /*admin=*/false);
  const security::NewKey admin_ = *security::MakeApiKey("ops", /*admin=*/true);
  baton::testing::ModelDir dir_;
  std::unique_ptr<FakeCluster> cluster_;
};

// Every method that the protos have: one that is added later without a check fails here.
TEST_F(ApiKeysTest, EveryMethodNeedsAKey) {
  ASSERT_GE(Methods().size(), 8u);
  for (const std::string& authorization :
       {std::string(), std::string("Bearer baton-wrong"), "Basic " + a_.key}) {
    const auto channel = Channel(authorization);
    for (const std::string& method : Methods()) {
      const absl::Status status = CallOnce(channel, method);
      EXPECT_TRUE(absl::IsUnauthenticated(status)) << method << ": " << status;
      EXPECT_EQ(ErrorReason(status), "INVALID_API_KEY") << method;
    }
    for (const char* version : {"v1alpha", "v1"}) {
      const absl::Status status = CallOnce(
          channel,
          absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo"));
      EXPECT_TRUE(absl::IsUnauthenticated(status) || absl::IsUnimplemented(status)) << status;
    }
  }
}

TEST_F(ApiKeysTest, ReflectionNeedsAKeyAndHealthNone) {
  const char* reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  EXPECT_TRUE(absl::IsUnauthenticated(CallOnce(Channel(), reflection)));
  EXPECT_TRUE(CallOnce(ChannelOf(a_), reflection).ok());
  EXPECT_TRUE(CallOnce(Channel(), "/grpc.health.v1.Health/Check").ok());
}

TEST_F(ApiKeysTest, AdminCallsNeedTheRight) {
  for (const std::string& method : Methods()) {
    const absl::Status of_user = CallOnce(ChannelOf(a_), method);
    const absl::Status of_admin = CallOnce(ChannelOf(admin_), method);
    const bool admin_only = absl::StrContains(method, "AdminService");
    EXPECT_EQ(absl::IsPermissionDenied(of_user), admin_only) << method << ": " << of_user;
    EXPECT_EQ(ErrorReason(of_user) == "NOT_ADMIN", admin_only) << method << ": " << of_user;
    EXPECT_FALSE(absl::IsPermissionDenied(of_admin)) << method << ": " << of_admin;
    EXPECT_FALSE(absl::IsUnauthenticated(of_user)) << method;
  }
}

TEST_F(ApiKeysTest, WorkersGetTheTenantOfTheKeyAndItsOwnSalt) {
  const auto a = Decoded(a_, "", "");
  EXPECT_EQ(a.tenant(), "a");
  EXPECT_EQ(Decoded(a_, "a", "").cache_salt(), a.cache_salt());
  const auto b = Decoded(b_, "", "");
  EXPECT_EQ(b.tenant(), "b");
  EXPECT_NE(b.cache_salt(), a.cache_salt());
  // Nor does a client reach the other's namespace with the salt that workers see.
  EXPECT_NE(Decoded(b_, "", a.cache_salt()).cache_salt(), a.cache_salt());
}

TEST_F(ApiKeysTest, AnotherTenantsNameIsRefused) {
  v1::GenerateOnceRequest once;
  once.mutable_request()->set_text("hello");
  once.mutable_request()->set_tenant("b");
  grpc::ClientContext context;
  v1::GenerateOnceResponse response;
  const absl::Status status = FromGrpcStatus(
      v1::InferenceService::NewStub(ChannelOf(a_))->GenerateOnce(&context, once, &response));
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_EQ(ErrorReason(status), "TENANT_MISMATCH");
}

TEST_F(ApiKeysTest, ATenantHasTheLimitsOfItsKey) {
  const auto stub = v1::InferenceService::NewStub(ChannelOf(b_));
  v1::GenerateRequest request;
  request.set_text("hello");
  grpc::ClientContext first_context;
  const auto first = stub->Generate(&first_context, request);
  testing::DecodeCall decode = cluster_->decode(0)->AwaitDecode();  // it is inside
  const absl::Status second = [&] {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return FromGrpcStatus(reader->Finish());
  }();
  EXPECT_EQ(ErrorReason(second), "TENANT_LIMIT") << second;
  EXPECT_TRUE(ErrorRetryAfter(second));
  decode.Finish(Ids("!"), DecodeResponse::FINISH_LENGTH);
  v1::GenerateResponse response;
  while (first->Read(&response)) {
  }
  EXPECT_TRUE(first->Finish().ok());
}

TEST_F(ApiKeysTest, HttpNeedsAKeyExceptForProbes) {
  HttpClient client(cluster_->server().http_address());
  for (const char* path : {"/v1/models", "/v1/models/x", "/v1/completions", "/nowhere"}) {
    for (const std::string& headers :
         {std::string(), std::string("Authorization: Bearer wrong\r\n")}) {
      client.Get(path, headers);
      const auto reply = client.Read();
      EXPECT_EQ(reply.status, 401) << path;
      EXPECT_THAT(reply.body, HasSubstr(R"("code":"invalid_api_key")")) << path;
      EXPECT_THAT(reply.body, HasSubstr(R"("type":"invalid_request_error")"));
    }
  }
  client.Post("/v1/completions", R"({"prompt": "x"})");
  EXPECT_EQ(client.Read().status, 401);
  client.Post("/v1/chat/completions", "no JSON");
  EXPECT_EQ(client.Read().status, 401);
  for (const char* path : {"/livez", "/readyz", "/startupz", "/health"}) {
    client.Get(path);
    EXPECT_EQ(client.Read().status, 200) << path;
  }
  client.Get("/v1/models", absl::StrCat("authorization: Bearer ", a_.key, "\r\n"));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ApiKeysTest, OverHttpTheKeyAndNotTheUserIsTheTenant) {
  HttpClient client(cluster_->server().http_address());
  client.Post("/v1/completions", R"({"prompt": "hello", "user": "someone", "max_tokens": 2})",
              absl::StrCat("Authorization: Bearer ", a_.key, "\r\n"));
  testing::DecodeCall call = cluster_->decode(0)->AwaitDecode();
  EXPECT_EQ(call.request.tenant(), "a");
  const std::string salt = call.request.cache_salt();
  call.Finish(Ids("!"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(Decoded(a_, "", "").cache_salt(), salt);
}

TEST(ApiKeysAtStart, ListeningBeyondLoopbackNeedsThem) {
  const auto start = [](const std::function<void(Options*)>& adjust) {
    Options options;
    options.model_dir = "nowhere";
    options.decode_workers = {"127.0.0.1:1"};
    adjust(&options);
    return Validate(&options);
  };
  EXPECT_TRUE(start([](Options*) {}).ok());
  const absl::Status grpc = start([](Options* o) { o->listen = "0.0.0.0:0"; });
  EXPECT_EQ(ErrorReason(grpc), "NEEDS_CREDENTIALS");
  EXPECT_EQ(ErrorField(grpc), "--listen");
  EXPECT_THAT(grpc.message(), HasSubstr("--api-keys"));
  EXPECT_EQ(ErrorField(start([](Options* o) { o->http_listen = "[::]:0"; })), "--http-listen");
  EXPECT_TRUE(start([](Options* o) {
                o->listen = o->http_listen = "0.0.0.0:0";
                o->insecure = true;
              }).ok());
  EXPECT_TRUE(start([](Options* o) {
                o->listen = o->http_listen = "0.0.0.0:0";
                o->api_keys = "keys";
              }).ok());
}

}  // namespace
}  // namespace baton::router
