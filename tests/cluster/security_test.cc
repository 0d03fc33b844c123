// A cluster with TLS, client certificates, API keys and a worker secret: every port refuses every
// caller that lacks one of them, and tenants share no cached prefix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "baton/internal/v1/decode.grpc.pb.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/security/api_keys.h"
#include "common/security/shared_secret.h"
#include "decode_worker/worker.h"
#include "prefill_worker/worker.h"
#include "router/server.h"
#include "tests/testing/generic_call.h"
#include "tests/testing/http_client.h"
#include "tests/testing/listening_socket.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/test_certificates.h"
#include "tests/testing/worker_client.h"

namespace baton {
namespace {

using ::baton::testing::CallOnce;
using ::baton::testing::CertificateFiles;
using ::baton::testing::MethodsOf;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kDemo[] = "models/demo";
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";

// All that callers may have.
struct Files {
  testing::ModelDir dir;
  testing::TestCa ca{dir.path(), "ca"};
  testing::TestCa other_ca{dir.path(), "other_ca"};
  CertificateFiles server = ca.Issue("server");
  CertificateFiles client = ca.Issue("client");
  CertificateFiles expired = ca.Issue("expired", /*seconds=*/-60);
  CertificateFiles foreign = other_ca.Issue("foreign");
  security::NewKey a = *security::MakeApiKey("a", /*admin=*/false);
  security::NewKey b = *security::MakeApiKey("b", /*admin=*/false);
  security::NewKey admin = *security::MakeApiKey("ops", /*admin=*/true);
  std::string secret = std::string(40, 's');

  Files() {
    dir.Write("keys", absl::StrCat(a.line, "\n", b.line, "\n", admin.line, "\n"));
    dir.Write("secret", secret + "\n");
    dir.Write("other_secret", std::string(40, 'o') + "\n");
  }
  ServerTls ForServer() const { return {server.cert, server.key, ca.ca()}; }
  ChannelTls With(const CertificateFiles& certificate) const {
    return {false, ca.ca(), certificate.cert, certificate.key, ""};
  }
};

CallHeaders Bearer(const std::string& key) {
  return {{"authorization", absl::StrCat("Bearer ", key)}};
}
std::string BearerLine(const std::string& key) {
  return absl::StrCat("Authorization: Bearer ", key, "\r\n");
}
CallHeaders Secret(const std::string& secret) { return {{security::kWorkerSecretHeader, secret}}; }

std::shared_ptr<grpc::Channel> Channel(const std::string& address, const ChannelTls& tls,
                                       const CallHeaders& headers = {}) {
  return MakeChannel(address, kClientChannel,
                     MakeChannelSecurity(tls, [headers] { return headers; }));
}

// What the server sends in reply to `requests`, of which the last one closes the connection; empty
// if the connection is refused.
std::string HttpsExchange(const std::string& address, const std::string& requests,
                          const std::string& ca, const CertificateFiles& certificate) {
  namespace net = boost::asio;
  namespace ssl = boost::asio::ssl;
  boost::system::error_code error;
  net::io_context io;
  ssl::context context(ssl::context::tls_client);
  context.load_verify_file(ca);
  context.set_verify_mode(ssl::verify_peer);
  if (!certificate.cert.empty()) {
    context.use_certificate_chain_file(certificate.cert);
    context.use_private_key_file(certificate.key, ssl::context::pem);
  }
  ssl::stream<net::ip::tcp::socket> stream(io, context);
  const size_t colon = address.rfind(':');
  int port = 0;
  BATON_CHECK(absl::SimpleAtoi(address.substr(colon + 1), &port));
  stream.next_layer().connect(
      {net::ip::make_address(address.substr(0, colon)), static_cast<uint16_t>(port)}, error);
  BATON_CHECK(!error) << error.message();
  stream.handshake(ssl::stream_base::client, error);
  if (error) return "";
  // With TLS 1.3, the server refuses the client's certificate after the client's handshake.
  net::write(stream, net::buffer(requests), error);
  std::string reply;
  net::read(stream, net::dynamic_buffer(reply), error);
  // The end is authentic: the server has said so.
  if (!reply.empty()) {
    EXPECT_EQ(error, net::error::eof) << error.message();
  }
  return reply;
}

std::string Get(const std::string& path, const std::string& headers) {
  return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n", headers, "\r\n");
}

// The status of GET `path`; 0 if the connection is refused.
int HttpsGet(const std::string& address, const std::string& path, const std::string& ca,
             const CertificateFiles& certificate, const std::string& headers = "") {
  const std::string reply = HttpsExchange(
      address, Get(path, absl::StrCat("Connection: close\r\n", headers)), ca, certificate);
  int status = 0;
  if (!absl::StartsWith(reply, "HTTP/1.1 ") || !absl::SimpleAtoi(reply.substr(9, 3), &status)) {
    return 0;
  }
  return status;
}

class SecurityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = new Files();
    collector_ = new testing::ListeningSocket();
    worker::WorkerOptions options;
    options.model_dir = kDemo;
    options.num_blocks = 128;
    options.threads = 1;
    options.tls = files_->ForServer();
    options.worker_secret_file = files_->dir.PathOf("secret");
    options.tracing.endpoint = "http://" + collector_->address();
    options.tracing.sample_ratio = 0;  // only callers' traces
    prefill_ = *prefill_worker::PrefillWorker::Start(options);
    decode_ = *decode_worker::DecodeWorker::Start(options, DecodeOptions());
    auto router = StartRouter("secret", files_->With(files_->client));
    BATON_CHECK(router.ok()) << router.status();
    router_ = *std::move(router);
    AwaitWorkers(*router_, v1::WORKER_STATE_READY);
  }
  static void TearDownTestSuite() {
    router_.reset();
    decode_.reset();
    prefill_.reset();
    delete collector_;
    delete files_;
  }

  // Everything that is missing is asked of the prefill worker.
  static decode_worker::DecodeOptions DecodeOptions() {
    decode_worker::DecodeOptions options;
    options.local_prefill_max_tokens = 0;
    options.worker_tls = files_->With(files_->client);
    return options;
  }
  static absl::StatusOr<std::unique_ptr<router::RouterServer>> StartRouter(
      const std::string& secret_file, const ChannelTls& worker_tls) {
    router::Options options;
    options.model_dir = kDemo;
    options.listen = options.http_listen = options.metrics_listen = "127.0.0.1:0";
    options.prefill_workers = {prefill_->address()};
    options.decode_workers = {decode_->address()};
    options.api_keys = files_->dir.PathOf("keys");
    options.tls = files_->ForServer();
    options.worker_secret_file = files_->dir.PathOf(secret_file);
    options.worker_tls = worker_tls;
    options.max_local_prefill_tokens = 0;
    return router::RouterServer::Start(std::move(options));
  }
  static std::shared_ptr<grpc::Channel> ToRouter(const router::RouterServer& router,
                                                 const security::NewKey& key) {
    return Channel(router.address(), files_->With(files_->client), Bearer(key.key));
  }
  // Asks the router again and again until both workers are in the state and their details have the
  // text. Returns the details.
  static std::vector<std::string> AwaitWorkers(const router::RouterServer& router,
                                               v1::WorkerState state,
                                               absl::string_view in_detail = "") {
    const auto stub = v1::AdminService::NewStub(ToRouter(router, files_->admin));
    std::vector<std::string> details;
    for (int attempt = 0; attempt < 100'000 && details.size() < 2; ++attempt) {
      grpc::ClientContext context;
      context.set_deadline(testing::TestDeadline());
      v1::ListWorkersResponse response;
      const grpc::Status status = stub->ListWorkers(&context, {}, &response);
      BATON_CHECK(status.ok()) << status.error_message();
      details.clear();
      for (const v1::WorkerStatus& worker : response.workers()) {
        if (worker.state() == state && absl::StrContains(worker.detail(), in_detail)) {
          details.push_back(worker.detail());
        }
      }
    }
    EXPECT_EQ(details.size(), 2u);
    return details;
  }

  static v1::GenerateOnceResponse Generate(const security::NewKey& key, int seed) {
    v1::GenerateOnceRequest once;
    v1::GenerateRequest& request = *once.mutable_request();
    for (int i = 0; i < 200; ++i) request.mutable_token_ids()->add_ids((i * 7 + seed) % 1000);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(8);
    request.set_return_token_ids(true);
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    v1::GenerateOnceResponse response;
    const grpc::Status status = v1::InferenceService::NewStub(ToRouter(*router_, key))
                                    ->GenerateOnce(&context, once, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  inline static Files* files_ = nullptr;
  inline static testing::ListeningSocket* collector_ = nullptr;  // of the workers' spans
  inline static std::unique_ptr<prefill_worker::PrefillWorker> prefill_;
  inline static std::unique_ptr<decode_worker::DecodeWorker> decode_;
  inline static std::unique_ptr<router::RouterServer> router_;
};

// The health service needs neither key nor secret: what refuses here is the handshake, also with
// the key or the secret.
TEST_F(SecurityTest, EveryGrpcPortNeedsAGoodCertificate) {
  for (const std::string& address : {router_->address(), prefill_->address(), decode_->address()}) {
    EXPECT_TRUE(CallOnce(Channel(address, files_->With(files_->client)), kHealth).ok());
    const std::pair<const char*, ChannelTls> refused[] = {
        {"plaintext", ChannelTls()},
        {"no certificate", files_->With({})},
        {"expired certificate", files_->With(files_->expired)},
        {"certificate of another CA", files_->With(files_->foreign)},
        {"client that trusts another CA",
         {false, files_->other_ca.ca(), files_->client.cert, files_->client.key, ""}},
        {"client that expects another server",
         {false, files_->ca.ca(), files_->client.cert, files_->client.key, "another.example"}},
    };
    const CallHeaders good =
        address == router_->address() ? Bearer(files_->admin.key) : Secret(files_->secret);
    for (const auto& [what, tls] : refused) {
      for (const CallHeaders& headers : {CallHeaders(), good}) {
        const absl::Status status = CallOnce(Channel(address, tls, headers), kHealth);
        EXPECT_TRUE(absl::IsUnavailable(status)) << address << ", " << what << ": " << status;
      }
    }
  }
}

TEST_F(SecurityTest, TheHttpPortNeedsAGoodCertificateAndAKey) {
  const std::string& address = router_->http_address();
  const std::string ca = files_->ca.ca();
  EXPECT_EQ(HttpsGet(address, "/livez", ca, files_->client), 200);
  EXPECT_EQ(HttpsGet(address, "/livez", ca, {}), 0);
  EXPECT_EQ(HttpsGet(address, "/livez", ca, files_->expired), 0);
  EXPECT_EQ(HttpsGet(address, "/livez", ca, files_->foreign), 0);
  EXPECT_EQ(HttpsGet(address, "/livez", files_->other_ca.ca(), files_->client), 0);
  EXPECT_EQ(testing::HttpGet(address, "/livez").find("HTTP/"), std::string::npos) << "plaintext";
  EXPECT_EQ(HttpsGet(address, "/v1/models", ca, files_->client), 401);
  EXPECT_EQ(HttpsGet(address, "/v1/models", ca, files_->client, BearerLine("baton-wrong")), 401);
  const std::string key = BearerLine(files_->a.key);
  EXPECT_EQ(HttpsGet(address, "/v1/models", ca, files_->client, key), 200);
  for (const CertificateFiles& bad : {CertificateFiles(), files_->expired, files_->foreign}) {
    EXPECT_EQ(HttpsGet(address, "/v1/models", ca, bad, key), 0) << bad.cert;
  }
}

TEST_F(SecurityTest, TheHttpStatusNeedsAnOperatorsKey) {
  const auto reply = [](const std::string& headers) {
    return HttpsExchange(router_->http_address(),
                         Get("/v1/baton/status", absl::StrCat("Connection: close\r\n", headers)),
                         files_->ca.ca(), files_->client);
  };
  EXPECT_THAT(reply(""), AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("invalid_api_key")));
  EXPECT_THAT(reply(BearerLine(files_->a.key)),
              AllOf(StartsWith("HTTP/1.1 403"), HasSubstr("not_admin")));
  EXPECT_THAT(reply(BearerLine(files_->admin.key)),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr(decode_->address())));
}

// It has neither keys nor TLS, so it must show nothing of tenants or their credentials.
TEST_F(SecurityTest, MetricsAreOpenAndNameNoTenant) {
  Generate(files_->a, 3);
  for (const std::string& address :
       {router_->metrics_address(), prefill_->metrics_address(), decode_->metrics_address()}) {
    const std::string reply = testing::HttpGet(address, "/metrics");
    EXPECT_THAT(reply, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("baton_"))) << address;
    for (const std::string& hidden :
         {std::string("tenant="), std::string("\"a\""), files_->a.key, files_->secret,
          files_->a.line.substr(0, files_->a.line.find(' '))}) {
      EXPECT_THAT(reply, Not(HasSubstr(hidden))) << address;
    }
  }
}

// Requests that come while the one before is answered, and a stream.
TEST_F(SecurityTest, HttpOverTlsTakesSeveralRequests) {
  const std::string key = BearerLine(files_->a.key);
  const std::string body = R"({"prompt": "Table:", "max_tokens": 4, "stream": true})";
  const std::string reply = HttpsExchange(
      router_->http_address(),
      absl::StrCat(Get("/livez", ""), Get("/v1/models", key), Get("/nowhere", key),
                   "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", key,
                   "Content-Length: ", body.size(), "\r\n\r\n", body),
      files_->ca.ca(), files_->client);
  std::vector<std::string> statuses;
  for (absl::string_view part : absl::StrSplit(reply, "HTTP/1.1 ", absl::SkipEmpty())) {
    statuses.emplace_back(part.substr(0, 3));
  }
  EXPECT_THAT(statuses, ::testing::ElementsAre("200", "200", "404", "200")) << reply;
  EXPECT_THAT(reply, HasSubstr("data: [DONE]"));
}

// Every method that the protos of the workers have.
TEST_F(SecurityTest, WorkersNeedTheSecret) {
  const auto watch = MethodsOf(internal::v1::WatchRequest::descriptor()->file());
  auto of_prefill = MethodsOf(internal::v1::PrefillRequest::descriptor()->file());
  auto of_decode = MethodsOf(internal::v1::DecodeRequest::descriptor()->file());
  ASSERT_GE(watch.size(), 4u);
  of_prefill.insert(of_prefill.end(), of_decode.begin(), of_decode.end());
  of_prefill.insert(of_prefill.end(), watch.begin(), watch.end());
  of_decode.insert(of_decode.end(), watch.begin(), watch.end());
  for (const auto& [address, methods] :
       {std::pair(prefill_->address(), of_prefill), std::pair(decode_->address(), of_decode)}) {
    for (const CallHeaders& headers :
         {CallHeaders(), Secret(std::string(40, 'o')), Secret(files_->secret.substr(1)),
          Bearer(files_->admin.key)}) {
      const auto channel = Channel(address, files_->With(files_->client), headers);
      for (const std::string& method : methods) {
        const absl::Status status = CallOnce(channel, method);
        EXPECT_TRUE(absl::IsUnauthenticated(status)) << method << ": " << status;
        EXPECT_EQ(ErrorReason(status), "WRONG_WORKER_SECRET") << method;
      }
      EXPECT_TRUE(absl::IsUnauthenticated(
          CallOnce(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")));
    }
    const auto good = Channel(address, files_->With(files_->client), Secret(files_->secret));
    EXPECT_TRUE(CallOnce(good, "/baton.internal.v1.WorkerService/GetBlockCounts").ok());
  }
}

TEST_F(SecurityTest, WorkersTraceNoCallWithoutTheSecret) {
  const std::string stranger(32, 'a'), known(32, 'b');
  const auto traced = [](CallHeaders headers, const std::string& trace) {
    headers.emplace_back("traceparent", absl::StrCat("00-", trace, "-00000000000000cd-01"));
    return headers;
  };
  for (const auto& [address, method] :
       {std::pair(prefill_->address(), "/baton.internal.v1.PrefillService/Prefill"),
        std::pair(decode_->address(), "/baton.internal.v1.DecodeService/Decode")}) {
    const auto call = [&, address = address, method = method](const CallHeaders& headers) {
      return CallOnce(Channel(address, files_->With(files_->client), headers), method);
    };
    EXPECT_TRUE(absl::IsUnauthenticated(call(traced({}, stranger))));
    EXPECT_FALSE(absl::IsUnauthenticated(call(traced(Secret(files_->secret), known))));
  }
  for (int worker = 0; worker < 2; ++worker) {
    const int connection = collector_->Accept();
    std::string sent;
    char buffer[4096];
    while (!absl::StrContains(sent, known) && !absl::StrContains(sent, stranger)) {
      const ssize_t n = read(connection, buffer, sizeof(buffer));
      ASSERT_GT(n, 0) << sent;
      sent.append(buffer, static_cast<size_t>(n));
    }
    EXPECT_THAT(sent, AllOf(HasSubstr(known), Not(HasSubstr(stranger))));
    const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(write(connection, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
    close(connection);
  }
}

TEST_F(SecurityTest, TheRouterNeedsAKeyAndAdminCallsAnAdminsKey) {
  const auto inference = MethodsOf(v1::GenerateRequest::descriptor()->file());
  const auto admin = MethodsOf(v1::ListWorkersRequest::descriptor()->file());
  ASSERT_GE(inference.size(), 5u);
  ASSERT_GE(admin.size(), 3u);
  for (const CallHeaders& headers :
       {CallHeaders(), Bearer("baton-wrong"), Secret(std::string(40, 'o'))}) {
    const auto channel = Channel(router_->address(), files_->With(files_->client), headers);
    for (const auto& methods : {inference, admin}) {
      for (const std::string& method : methods) {
        const absl::Status status = CallOnce(channel, method);
        EXPECT_TRUE(absl::IsUnauthenticated(status)) << method << ": " << status;
        EXPECT_EQ(ErrorReason(status), "INVALID_API_KEY") << method;
      }
    }
  }
  const auto tenants =
      Channel(router_->address(), files_->With(files_->client), Bearer(files_->a.key));
  for (const std::string& method : admin) {
    const absl::Status status = CallOnce(tenants, method);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << method << ": " << status;
    EXPECT_EQ(ErrorReason(status), "NOT_ADMIN") << method;
  }
}

TEST_F(SecurityTest, TenantsShareNoCachedPrefix) {
  const auto first = Generate(files_->a, 1);
  EXPECT_EQ(first.usage().cached_prompt_tokens(), 0);
  EXPECT_GT(first.usage().kv_bytes(), 0) << "the prefill worker has computed it";
  EXPECT_GT(Generate(files_->a, 1).usage().cached_prompt_tokens(), 0);
  const auto other = Generate(files_->b, 1);
  EXPECT_EQ(other.usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(other.usage().kv_bytes(), first.usage().kv_bytes()) << "nothing was cached on workers";
  EXPECT_EQ(std::vector<int>(other.token_ids().begin(), other.token_ids().end()),
            std::vector<int>(first.token_ids().begin(), first.token_ids().end()));
  EXPECT_GT(Generate(files_->b, 1).usage().cached_prompt_tokens(), 0);
}

TEST_F(SecurityTest, AnOperatorExplainsForATenant) {
  Generate(files_->a, 2);
  const auto stub = v1::AdminService::NewStub(ToRouter(*router_, files_->admin));
  const auto cached = [&](const std::string& tenant) {
    v1::ExplainRequest request;
    for (int i = 0; i < 200; ++i) {
      request.mutable_request()->mutable_token_ids()->add_ids((i * 7 + 2) % 1000);
    }
    request.mutable_request()->set_tenant(tenant);
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    v1::ExplainResponse response;
    const grpc::Status status = stub->Explain(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.decision().predicted_cached_tokens();
  };
  // The router knows of the dispatch at once.
  EXPECT_GT(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached(""), 0);
}

TEST_F(SecurityTest, ARouterShowsTheWorkersThatRefuseIt) {
  const auto wrong_secret = *StartRouter("other_secret", files_->With(files_->client));
  for (const std::string& detail : AwaitWorkers(*wrong_secret, v1::WORKER_STATE_REFUSED)) {
    EXPECT_THAT(detail, HasSubstr("secret"));
  }
  // A router cannot connect to workers whose certificate it does not trust, and the detail says
  // why.
  ChannelTls trusts_another = files_->With(files_->client);
  trusts_another.ca = files_->other_ca.ca();
  const auto wrong_ca = *StartRouter("secret", trusts_another);
  AwaitWorkers(*wrong_ca, v1::WORKER_STATE_CONNECTING, "andshake");
}

TEST_F(SecurityTest, APrefillWorkerRefusesADecodeWorkerWithoutTheSecret) {
  worker::WorkerOptions options;
  options.model_dir = kDemo;
  options.num_blocks = 64;
  options.threads = 1;
  options.worker_secret_file = files_->dir.PathOf("other_secret");
  const auto stranger = *decode_worker::DecodeWorker::Start(options, DecodeOptions());
  model::SamplingParams greedy;
  greedy.temperature = 0;
  const auto request =
      testing::MakeDecodeRequest(*prefill_, *stranger, std::vector<int32_t>(100, 7), greedy, 4);
  const auto result = testing::Decode(
      Channel(stranger->address(), ChannelTls(), Secret(std::string(40, 'o'))), request);
  EXPECT_TRUE(absl::IsUnavailable(result.status)) << result.status;
  EXPECT_EQ(ErrorReason(result.status), "PREFILL_REFUSED") << result.status;
  EXPECT_TRUE(result.tokens.empty());
}

}  // namespace
}  // namespace baton
