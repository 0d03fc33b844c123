// What does a warm prefix save? Time to first token through a running cluster, for prompts whose
// first three quarters are cached on the prefill worker, against prompts that nobody has seen.
//
//   warm_ttft --address HOST:PORT [--prompt-tokens 1024] [--rounds 9]
//
// The goal: warm / cold <= 1.1 x the share of the prompt still to compute.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "baton/v1/inference.grpc.pb.h"
#include "common/base/rpc/channel.h"

namespace baton {
namespace {

struct Measured {
  double ttft_ms = 0;
  int cached_tokens = 0;
};

class Client {
 public:
  explicit Client(const std::string& address)
      : stub_(v1::InferenceService::NewStub(MakeChannel(address, kClientChannel))) {}

  Measured FirstToken(const std::vector<int32_t>& prompt) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_stop()->set_max_tokens(2);
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_sampling()->set_temperature(0);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
    const auto begin = std::chrono::steady_clock::now();
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    Measured measured;
    while (reader->Read(&response)) {
      if (measured.ttft_ms == 0) {
        measured.ttft_ms =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                .count();
      }
      if (response.has_usage()) measured.cached_tokens = response.usage().cached_prompt_tokens();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) {
      std::fprintf(stderr, "request failed: %s\n", status.error_message().c_str());
      std::exit(1);
    }
    return measured;
  }

 private:
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  CLI::App app("Warm against cold time to first token");
  std::string address;
  int prompt_tokens = 1024, rounds = 9, vocabulary = 1000;
  app.add_option("--address", address, "router")->required();
  app.add_option("--prompt-tokens", prompt_tokens)->check(CLI::Range(64, 1 << 20));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--vocabulary", vocabulary, "draw token ids below this")
      ->check(CLI::Range(1, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  std::mt19937 random(std::random_device{}());
  const auto tokens = [&](int count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocabulary);
    return ids;
  };
  Client client(address);
  client.FirstToken(tokens(prompt_tokens));  // warm-up: connections, code, clocks
  const int shared = prompt_tokens * 3 / 4 / 16 * 16;
  std::vector<double> cold, warm, share, ratio;
  for (int round = 0; round < rounds; ++round) {
    std::vector<int32_t> prompt = tokens(prompt_tokens);
    const Measured first = client.FirstToken(prompt);
    const std::vector<int32_t> tail = tokens(prompt_tokens - shared);
    std::copy(tail.begin(), tail.end(), prompt.begin() + shared);
    const Measured second = client.FirstToken(prompt);
    cold.push_back(first.ttft_ms);
    warm.push_back(second.ttft_ms);
    share.push_back(1.0 - static_cast<double>(second.cached_tokens) / prompt_tokens);
    ratio.push_back(second.ttft_ms / first.ttft_ms);
  }
  std::printf("prompt %d tokens, %d shared, medians of %d rounds\n", prompt_tokens, shared, rounds);
  std::printf("%-22s %10.2f ms\n%-22s %10.2f ms\n", "TTFT cold", Median(cold), "TTFT warm",
              Median(warm));
  std::printf("%-22s %10.3f\n%-22s %10.3f\n%-22s %10.3f (goal <= 1.1)\n", "warm / cold",
              Median(ratio), "share to compute", Median(share), "ratio / share",
              Median(ratio) / Median(share));
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
