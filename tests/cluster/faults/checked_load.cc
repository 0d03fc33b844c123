// Load on a router whose answers are known: each is compared with the oracle's. What it starts is
// the client alone; the cluster is there already.
//   checked_load --address HOST:PORT [--share 0.5]
// It measures first how long an answer takes while its clients send without a pause, then pauses so
// that they keep the cluster busy for --share of the time, and prints "ready". At each line of
// standard input it prints what became of the requests since the last one, as JSON; it ends with
// its input.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/rpc/channel.h"
#include "tests/cluster/faults/load.h"

namespace baton::testing {
namespace {

struct LoadOptions {
  std::string address, model_dir = "models/demo", api_key;
  int clients = 8;  // each has a connection
  double share = 1;
  uint64_t seed = 1;
};

class CheckedLoad {
 public:
  CheckedLoad(const LoadOptions& options, const std::vector<Case>& cases) {
    tally_.AllowLostRouter();  // such an answer is an error, not a wrong one
    CallHeaders headers;
    if (!options.api_key.empty()) {
      headers = {{"authorization", absl::StrCat("Bearer ", options.api_key)}};
    }
    for (int i = 0; i < options.clients; ++i) {
      channels_.push_back(MakeChannel(options.address, kClientChannel,
                                      MakeChannelSecurity({}, [headers] { return headers; })));
    }
    Start(options, cases, absl::ZeroDuration());
    for (BackgroundLoad& client : clients_) client.AwaitRight(kMeasured);
    clients_.clear();
    Start(options, cases, MeanTime() * (1 / options.share - 1));
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
    int64_t lost = 0;
    for (const auto& [reason, count] : tally_.reasons()) {
      if (reason == "UNAVAILABLE") lost += count;  // no more than that: gRPC's own
    }
    const Totals now = {tally_.right(), tally_.errors(), tally_.wrong()};
    const std::string text = absl::StrFormat(
        R"({"right": %d, "errors": %d, "wrong": %d, "first_token_p50_ms": %.2f, )"
        R"("first_token_p99_ms": %.2f, "gap_p50_ms": %.2f, "gap_p99_ms": %.2f, )"
        R"("errors_by_reason": "%s", "lost_connections_so_far": %d})",
        now.right - last_.right, now.errors - last_.errors, now.wrong - last_.wrong, first_ms(0.5),
        first_ms(0.99), absl::ToDoubleMilliseconds(GapQuantile(answers, 0.5)),
        absl::ToDoubleMilliseconds(GapQuantile(answers, 0.99)), tally_.ErrorsByReason(), lost);
    last_ = now;
    for (const std::string& example : tally_.examples()) std::cerr << example << "\n";
    return text;
  }

 private:
  static constexpr int kMeasured = 5;  // answers per client
  struct Totals {
    int64_t right = 0, errors = 0, wrong = 0;
  };

  // Of the answers so far, which no report has then.
  absl::Duration MeanTime() {
    absl::MutexLock lock(&mutex_);
    absl::Duration sum;
    for (const Answer& answer : answers_) sum += answer.end - answer.begin;
    const absl::Duration mean = sum / std::max<int64_t>(1, answers_.size());
    answers_.clear();
    return mean;
  }

  void Start(const LoadOptions& options, const std::vector<Case>& cases, absl::Duration pause) {
    BackgroundLoad::Options load;
    load.clients = 1;
    load.cold = false;
    load.pause = pause;
    load.on_answer = [this](const Answer& answer) {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(answer);
    };
    for (size_t i = 0; i < channels_.size(); ++i) {
      load.seed = options.seed * 1000 + i;
      clients_.emplace_back(channels_[i], cases, load, tally_);
    }
  }

  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  Tally tally_;
  Totals last_;
  absl::Mutex mutex_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  std::deque<BackgroundLoad> clients_;  // last: they use the others
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
  const std::vector<Case> cases = MakeCases(oracle, 60, {20, 300, 10, 60}, options.seed);
  CheckedLoad load(options, cases);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) std::cout << load.Report() << std::endl;
  return 0;
}
