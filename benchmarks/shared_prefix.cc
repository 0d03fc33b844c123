// Is a prefix that several requests share computed once when nobody has it yet? Requests that
// arrive together, with one cold prefix: the time until all have their answers, and the prompt
// tokens that were computed for it.
//
//   shared_prefix --model DIR [--rounds 5] [--peer http://HOST:PORT]
//
// --peer is a running llama-server (POST /completion) with the same weights; its rounds alternate
// with ours, on the same prompts, and neither works while the other does. Every round has a new
// prefix. The goal: all done in at most 1/5 of the peer's time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/http_call.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {
namespace {

struct Options {
  ClusterOptions cluster;
  std::string address;  // of a running router, instead of a cluster of our own
  std::string peer;
  int clients = 8;
  int shared_tokens = 1500, own_tokens = 100, max_tokens = 8;
  int rounds = 5;
  int timeout_s = 600;
  uint64_t seed = 1;
};

struct Round {
  double wall_s = 0;
  int64_t computed_tokens = 0;
  std::vector<std::vector<int32_t>> answers;
};

using Prompts = std::vector<std::vector<int32_t>>;

Prompts MakePrompts(int clients, int shared_tokens, int own_tokens, int vocab_size,
                    Random* random) {
  const std::vector<int32_t> shared = random->Tokens(shared_tokens, vocab_size);
  Prompts prompts(clients, shared);
  for (std::vector<int32_t>& prompt : prompts) {
    const std::vector<int32_t> own = random->Tokens(own_tokens, vocab_size);
    prompt.insert(prompt.end(), own.begin(), own.end());
  }
  return prompts;
}

void CheckLength(const std::vector<int32_t>& answer, const Options& options) {
  if (static_cast<int>(answer.size()) == options.max_tokens) return;
  Die(absl::UnavailableError("an answer has another length than asked for"));
}

Round AskBaton(LoadGenerator* client, const Prompts& prompts, const Options& options) {
  std::vector<LoadRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts) {
    requests.push_back(MakeRequest(prompt, options.max_tokens));
    requests.back().timeout = absl::Seconds(options.timeout_s);
  }
  const double begin_s = NowSeconds();
  std::vector<Outcome> outcomes = client->SendAll(requests);
  Round round;
  round.wall_s = NowSeconds() - begin_s;
  for (Outcome& outcome : outcomes) {
    if (!outcome.status.ok()) Die(outcome.status);
    CheckLength(outcome.tokens, options);
    round.computed_tokens += outcome.usage.prompt_tokens() - outcome.usage.cached_prompt_tokens();
    round.answers.push_back(std::move(outcome.tokens));
  }
  return round;
}

Round AskPeer(const Prompts& prompts, const Options& options) {
  std::vector<absl::StatusOr<std::string>> bodies(prompts.size());
  std::vector<std::thread> clients;
  const double begin_s = NowSeconds();
  for (size_t i = 0; i < prompts.size(); ++i) {
    clients.emplace_back([&, i] {
      const nlohmann::json request = {{"prompt", prompts[i]}, {"n_predict", options.max_tokens},
                                      {"temperature", 0},     {"ignore_eos", true},
                                      {"cache_prompt", true}, {"return_tokens", true}};
      bodies[i] =
          HttpPost(options.peer, "/completion", request.dump(), absl::Seconds(options.timeout_s));
    });
  }
  for (std::thread& client : clients) client.join();
  Round round;
  round.wall_s = NowSeconds() - begin_s;
  for (const auto& body : bodies) {
    if (!body.ok()) Die(body.status());
    const auto answer = nlohmann::json::parse(*body, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object() || !answer.contains("timings") || !answer.contains("tokens")) {
      Die(absl::UnavailableError("the peer's answer has no timings or tokens: " + *body));
    }
    round.computed_tokens += answer["timings"].value("prompt_n", int64_t{0});
    round.answers.push_back(answer["tokens"].get<std::vector<int32_t>>());
    CheckLength(round.answers.back(), options);
  }
  return round;
}

// Answers that begin alike: programs with the same weights agree at least on most first tokens.
int SameFirst(const Round& a, const Round& b) {
  int same = 0;
  for (size_t i = 0; i < a.answers.size(); ++i) same += a.answers[i][0] == b.answers[i][0];
  return same;
}

int Run(const Options& options) {
  std::unique_ptr<LocalCluster> cluster;
  std::string address = options.address;
  if (address.empty()) {
    cluster = StartCluster(options.cluster);
    address = cluster->address("router");
  }
  LoadGenerator client({address});
  const int vocab_size = VocabSizeOf(&client);
  Random random(options.seed);
  // Connections, code, first touches of memory.
  const Prompts warm_up = MakePrompts(options.clients, 64, 16, vocab_size, &random);
  AskBaton(&client, warm_up, options);
  if (!options.peer.empty()) AskPeer(warm_up, options);

  const int once = options.shared_tokens + options.clients * options.own_tokens;
  std::printf(
      "%d requests at once, %d shared + %d own tokens, %d to generate; the prefix computed once "
      "makes %d prompt tokens, computed by each %d; seed %llu\n\n"
      "| round | Baton s | prompt tokens computed | peer s | prompt tokens computed | peer / Baton "
      "| same first token |\n|---|---|---|---|---|---|---|\n",
      options.clients, options.shared_tokens, options.own_tokens, options.max_tokens, once,
      options.clients * (options.shared_tokens + options.own_tokens),
      static_cast<unsigned long long>(options.seed));
  std::vector<double> ours, theirs, ratios;
  for (int i = 0; i < options.rounds; ++i) {
    const Prompts prompts = MakePrompts(options.clients, options.shared_tokens, options.own_tokens,
                                        vocab_size, &random);
    Round baton, peer;
    const bool peer_first = !options.peer.empty() && i % 2 == 1;
    if (peer_first) peer = AskPeer(prompts, options);
    baton = AskBaton(&client, prompts, options);
    ours.push_back(baton.wall_s);
    if (options.peer.empty()) {
      std::printf("| %d | %.3f | %lld | – | – | – | – |\n", i + 1, baton.wall_s,
                  static_cast<long long>(baton.computed_tokens));
      continue;
    }
    if (!peer_first) peer = AskPeer(prompts, options);
    theirs.push_back(peer.wall_s);
    ratios.push_back(peer.wall_s / baton.wall_s);
    std::printf("| %d | %.3f | %lld | %.3f | %lld | %.1f | %d of %d |\n", i + 1, baton.wall_s,
                static_cast<long long>(baton.computed_tokens), peer.wall_s,
                static_cast<long long>(peer.computed_tokens), ratios.back(), SameFirst(baton, peer),
                options.clients);
    std::fflush(stdout);
  }
  std::printf("\nMedian: Baton %.3f s", Percentile(ours, 0.5));
  if (!ratios.empty()) {
    std::printf(", peer %.3f s, ratio %.1f (goal >= 5)", Percentile(theirs, 0.5),
                Percentile(ratios, 0.5));
  }
  std::printf("\n");
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Requests at once with one cold prefix");
  app.option_defaults()->always_capture_default();
  Options options;
  AddClusterFlags(&app, &options.cluster);
  app.add_option("--prefill", options.cluster.prefill_workers)->check(CLI::Range(0, 64));
  app.add_option("--decode", options.cluster.decode_workers)->check(CLI::Range(1, 64));
  app.add_option("--address", options.address, "A running router, instead of --model");
  app.add_option("--peer", options.peer, "http://HOST:PORT of a llama-server with these weights");
  app.add_option("--clients", options.clients)->check(CLI::Range(1, 256));
  app.add_option("--shared-tokens", options.shared_tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--own-tokens", options.own_tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-tokens", options.max_tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--timeout-s", options.timeout_s)->check(CLI::Range(1, 86'400));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  if (options.address.empty() == options.cluster.model_dir.empty()) {
    std::fprintf(stderr, "shared_prefix: expected either --model or --address\n");
    return 1;
  }
  return Run(options);
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
