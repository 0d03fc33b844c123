// Load on a router whose answers are known: each is compared with the oracle's. What it starts is
// the client alone, the C++ SDK's with its default retries; the cluster is there already.
//   checked_load --address HOST:PORT [--share 0.5]
// It measures first how long an answer takes while its clients send without a pause, then pauses so
// that they keep the cluster busy for --share of the time, and prints "ready". At each line of
// standard input it prints what became of the requests since the last one, as JSON; it ends with
// its input.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "common/base/check.h"
#include "tests/cluster/faults/load.h"

namespace baton::testing {
namespace {

struct LoadOptions {
  std::string address, model_dir = "models/demo", api_key;
  int clients = 8;  // each has a connection
  double share = 1;
  uint64_t seed = 1;
};

client::GenerateRequest ToClientRequest(const Case& c) {
  client::GenerateRequest request;
  request.token_ids = c.prompt;
  request.sampling.temperature = c.sampling.temperature;
  request.sampling.top_p = c.sampling.top_p;
  request.sampling.top_k = c.sampling.top_k;
  request.sampling.min_p = c.sampling.min_p;
  request.sampling.seed = c.sampling.seed;
  request.max_tokens = static_cast<int32_t>(c.expected.size());
  request.ignore_eos = true;
  request.return_token_ids = true;
  return request;
}

Answer Send(client::Client& client, const Case& c) {
  Answer answer;
  answer.begin = absl::Now();
  const auto stream = client.Generate(ToClientRequest(c));
  for (const client::Delta& delta : *stream) {
    if (!delta.token_ids.empty()) answer.token_times.push_back(absl::Now());
  }
  answer.end = absl::Now();
  if (!answer.token_times.empty()) answer.first_token = answer.token_times.front();
  answer.status = stream->status();
  answer.tokens = stream->completion().token_ids();
  const client::FinishReason finish = stream->completion().finish_reason();
  if (finish != client::FinishReason::kUnfinished) {
    answer.finish =
        finish == client::FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP;
  }
  return answer;
}

class CheckedLoad {
 public:
  CheckedLoad(const LoadOptions& options, std::vector<Case> cases) : cases_(std::move(cases)) {
    client::ClientOptions client;  // else as a user gets it
    client.api_key = options.api_key;
    client::Environment environment = client::RealEnvironment();
    environment.random = [this, random = environment.random] {
      ++retries_;  // each draws its pause
      return random();
    };
    for (int i = 0; i < options.clients; ++i) {
      auto connection = client::Connection::Make(options.address, client, environment);
      BATON_CHECK(connection.ok()) << connection.status();
      threads_.emplace_back([this, connection = *std::move(connection),
                             seed = options.seed * 1000 + i] { Run(connection, seed); });
    }
    const auto measured = [&] {
      mutex_.AssertReaderHeld();
      return answers_.size() >= static_cast<size_t>(kMeasured * options.clients);
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&measured));
    absl::Duration sum;
    for (const Answer& answer : answers_) sum += answer.end - answer.begin;
    pause_ = sum / static_cast<int64_t>(answers_.size()) * (1 / options.share - 1);
    answers_.clear();  // no report has them
  }
  ~CheckedLoad() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  // Since the last call.
  std::string Report() {
    std::vector<Answer> answers;
    {
      absl::MutexLock lock(&mutex_);
      answers.swap(answers_);
    }
    std::vector<absl::Duration> first;
    for (const Answer& answer : answers) {
      if (answer.status.ok()) first.push_back(answer.first_token - answer.begin);
    }
    std::sort(first.begin(), first.end());
    const auto first_ms = [&](double q) {
      if (first.empty()) return 0.0;
      return absl::ToDoubleMilliseconds(first[static_cast<size_t>(q * double(first.size() - 1))]);
    };
    const Totals now = {tally_.right(), tally_.errors(), tally_.wrong(), retries_};
    const std::string text = absl::StrFormat(
        R"({"right": %d, "errors": %d, "wrong": %d, "retries": %d, "first_token_p50_ms": %.2f, )"
        R"("first_token_p99_ms": %.2f, "gap_p50_ms": %.2f, "gap_p99_ms": %.2f, )"
        R"("errors_by_reason": "%s"})",
        now.right - last_.right, now.errors - last_.errors, now.wrong - last_.wrong,
        now.retries - last_.retries, first_ms(0.5), first_ms(0.99),
        absl::ToDoubleMilliseconds(GapQuantile(answers, 0.5)),
        absl::ToDoubleMilliseconds(GapQuantile(answers, 0.99)), tally_.ErrorsByReason());
    last_ = now;
    for (const std::string& example : tally_.examples()) std::cerr << example << "\n";
    return text;
  }

 private:
  static constexpr int kMeasured = 5;  // answers per client
  struct Totals {
    int64_t right = 0, errors = 0, wrong = 0, retries = 0;
  };

  void Run(const std::shared_ptr<const client::Connection>& connection, uint64_t seed) {
    client::Client client(connection);
    std::mt19937_64 random(seed);
    while (Pause()) {
      const Case& c = cases_[random() % cases_.size()];
      Answer answer = Send(client, c);
      tally_.Count(c, answer);
      absl::MutexLock lock(&mutex_);
      answers_.push_back(std::move(answer));
    }
  }

  // Before each request. False once stopped.
  bool Pause() {
    absl::MutexLock lock(&mutex_);
    return !mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause_);
  }

  const std::vector<Case> cases_;
  Tally tally_;
  std::atomic<int64_t> retries_{0};
  Totals last_;
  absl::Mutex mutex_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) {
  using namespace baton::testing;
  CLI::App app("Sends requests to a router and compares each answer with the oracle's");
  LoadOptions options;
  app.add_option("--address", options.address)->required();
  app.add_option("--model", options.model_dir)->capture_default_str();
  app.add_option("--api-key", options.api_key)->envname("BATON_API_KEY");
  app.add_option("--clients", options.clients)->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--share", options.share, "of the time that each client has a request")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  Oracle oracle(options.model_dir, {.thread_count = 1});
  CheckedLoad load(options, MakeCases(oracle, 60, {20, 300, 10, 60}, options.seed));
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) std::cout << load.Report() << std::endl;
  return 0;
}
