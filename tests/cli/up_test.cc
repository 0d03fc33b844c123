#include "cli/up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/cli/script_binaries.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class UpTest : public ::testing::Test {
 protected:
  UpTest() {
    options_.cluster.model_dir = "/models/any";
    options_.cluster.bin_dir = binaries_.directory();
    options_.stop_grace = absl::Seconds(20);
  }

  void Script(const std::string& binary, const std::string& body) { binaries_.Write(binary, body); }

  ScriptBinaries binaries_;
  UpOptions options_;
  std::ostringstream out_, err_;
};

const std::string kWellBehaved = WellBehaved({"127.0.0.1:1", "127.0.0.1:2"});

TEST_F(UpTest, AChildThatDiesAtStartStopsAllAndIsQuoted) {
  Script("baton-prefill-worker", kWellBehaved);
  Script("baton-decode-worker", "echo \"no such dtype: $*\" >&2; exit 3");
  options_.cluster.worker_flags = {"--dtype", "f7"};
  EXPECT_EQ(RunUp(options_, out_, err_), 1);
  EXPECT_THAT(out_.str(), HasSubstr("decode-0 exited with code 3. Its last lines:\n  no such"));
  EXPECT_THAT(out_.str(), HasSubstr("--listen 127.0.0.1:"));
  EXPECT_THAT(out_.str(), HasSubstr("--worker-id decode-0"));
  EXPECT_THAT(out_.str(), HasSubstr("--dtype f7"));
}

TEST(GpuShareTest, WorkersShareOneGpu) {
  using ::testing::ElementsAre;
  ClusterOptions cluster;
  EXPECT_THAT(GpuShareFlags(cluster), ElementsAre("--gpu-memory-utilization", "0.4500"));
  cluster.decode_workers = 2;
  EXPECT_THAT(GpuShareFlags(cluster), ElementsAre("--gpu-memory-utilization", "0.3000"));
  cluster.worker_flags = {"--device", "cuda:1"};
  EXPECT_THAT(GpuShareFlags(cluster), ElementsAre("--gpu-memory-utilization", "0.3000"));
  cluster.worker_flags = {"--gpu-memory-utilization", "0.2"};
  EXPECT_THAT(GpuShareFlags(cluster), ElementsAre()) << "the user knows";
  cluster.worker_flags = {"--block-size", "16", "--device", "cpu"};
  EXPECT_THAT(GpuShareFlags(cluster), ElementsAre());
  cluster.worker_flags.clear();
  cluster.prefill_workers = 0;
  cluster.decode_workers = 1;
  EXPECT_THAT(GpuShareFlags(cluster), ElementsAre()) << "it has the GPU to itself";
}

TEST(EndpointLinesTest, CommandsHaveWhatTheRouterNeeds) {
  ClusterOptions cluster;
  EXPECT_EQ(EndpointLines(cluster, "h:1", ""),
            "Baton is ready: gRPC at h:1\n  try: baton generate \"Hello\" --address h:1\n");
  cluster.router_flags = {"--api-keys", "/keys"};
  std::string lines = EndpointLines(cluster, "h:1", "h:2");
  EXPECT_THAT(lines,
              HasSubstr("  try: BATON_API_KEY=KEY baton generate \"Hello\" --address h:1\n"));
  EXPECT_THAT(lines, HasSubstr("base_url http://h:2/v1, api_key KEY\n"));
  EXPECT_THAT(lines, HasSubstr("  try: curl -H 'Authorization: Bearer KEY' http://h:2/v1/"));
  EXPECT_THAT(lines, HasSubstr("`baton keys new` makes one"));
  EXPECT_THAT(lines, Not(HasSubstr(".pem")));
  cluster.router_flags = {"--tls-cert", "c", "--tls-key", "k"};
  cluster.router_tls = true;
  lines = EndpointLines(cluster, "h:1", "h:2");
  EXPECT_THAT(lines, HasSubstr("--address h:1 --tls-ca CA.pem\n"));
  EXPECT_THAT(lines, HasSubstr("curl --cacert CA.pem https://h:2/v1/"));
  EXPECT_THAT(lines, Not(HasSubstr("KEY")));
  cluster.router_flags.insert(cluster.router_flags.end(), {"--tls-client-ca", "ca"});
  lines = EndpointLines(cluster, "h:1", "h:2");
  EXPECT_THAT(lines, HasSubstr("--tls-ca CA.pem --tls-cert CLIENT.pem --tls-key CLIENT.key\n"));
  EXPECT_THAT(lines, HasSubstr("--cacert CA.pem --cert CLIENT.pem --key CLIENT.key https"));
}

TEST_F(UpTest, AMissingBinaryIsNamed) {
  EXPECT_EQ(RunUp(options_, out_, err_), 1);
  EXPECT_THAT(out_.str(), HasSubstr("/baton-prefill-worker is not there"));
}

TEST_F(UpTest, TheRouterGetsTheAddressesAndASignalStopsAll) {
  Script("baton-prefill-worker", kWellBehaved);
  Script("baton-decode-worker", kWellBehaved);
  // Never ready; tells the test, through the signal, that it has been started.
  Script("baton-router", absl::StrCat("echo \"router $*\"\nkill -TERM ", getpid(),
                                      "\ntrap 'exit 0' TERM\nwhile :; do sleep 0.05; done"));
  options_.cluster.prefill_workers = 2;
  options_.cluster.log_dir = options_.cluster.bin_dir + "/logs";
  EXPECT_EQ(RunUp(options_, out_, err_), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--prefill-workers 127.0.0.1:1,127.0.0.1:1 "
                                    "--decode-workers 127.0.0.1:1"));
  EXPECT_THAT(out_.str(), HasSubstr("[prefill-1] bye"));
  EXPECT_THAT(out_.str(), HasSubstr("Stopping."));
  std::ifstream log(options_.cluster.log_dir + "/decode-0.log");
  std::string first_line;
  std::getline(log, first_line);
  EXPECT_THAT(first_line, HasSubstr("loading weights 50 %"));
}

TEST_F(UpTest, WithJsonLogsGoToStderr) {
  Script("baton-prefill-worker", "echo prefill; exit 3");
  Script("baton-decode-worker", kWellBehaved);
  options_.json = true;
  EXPECT_EQ(RunUp(options_, out_, err_), 1);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), HasSubstr("prefill-0 exited with code 3"));
}

TEST_F(UpTest, JsonLinesArePrintedAsTheyAre) {
  Script("baton-prefill-worker", "echo '{\"message\":\"m\"}'; echo \"plain $*\" >&2; exit 3");
  Script("baton-decode-worker", kWellBehaved);
  options_.cluster.log_format = "json";
  options_.cluster.otlp_traces_endpoint = "http://c:1";
  EXPECT_EQ(RunUp(options_, out_, err_), 1);
  EXPECT_THAT(out_.str(), HasSubstr("{\"message\":\"m\"}\n"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("[prefill-0] {")));
  EXPECT_THAT(out_.str(), HasSubstr("[prefill-0] plain"));
  EXPECT_THAT(out_.str(), HasSubstr("--log-format json --otlp-traces-endpoint http://c:1"));
  EXPECT_THAT(out_.str(), HasSubstr("--worker-id prefill-0"));
}

TEST_F(UpTest, ADeafChildIsKilledAfterTheGrace) {
  Script("baton-prefill-worker",
         absl::StrCat("trap '' TERM\nkill -TERM ", getpid(), "\nwhile :; do sleep 0.05; done"));
  Script("baton-decode-worker", kWellBehaved);
  options_.stop_grace = absl::Milliseconds(200);
  EXPECT_EQ(RunUp(options_, out_, err_), 0);
}

}  // namespace
}  // namespace baton::cli
