// The servers that `baton bench` can measure.
#ifndef BATON_CLI_BENCH_TARGET_H_
#define BATON_CLI_BENCH_TARGET_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/dataset.h"
#include "cli/load_generator.h"
#include "cli/router_flags.h"
#include "client/cpp/client.h"

namespace baton::cli {

struct TargetOptions {
  std::string backend = "baton";     // one of kBackends
  std::string address;               // baton: of the router
  RouterAccess access;               // baton: how to be let in
  std::string base_url;              // the others: "http://host:port"
  std::string endpoint;              // the others: path of the URL; empty: OpenAI's
  std::string model;                 // empty: the first that the server lists
  std::vector<std::string> headers;  // the others: "Name: value"
  client::Sampling sampling;         // the seed of prompt i is its value plus i
  bool ignore_eos = false;
  bool keep_text = false;                   // in Outcome.text
  absl::Duration timeout = absl::Hours(6);  // of each request
};

// vllm: as openai, completions.
inline const std::vector<std::string> kBackends = {"baton", "openai", "openai-chat", "vllm"};

struct TargetModel {
  std::string id;
  int vocab_size = 0;     // 0: the server does not say
  int max_model_len = 0;  // tokens of prompt and answer; 0: the server does not say
};

// Thread-safe. Must outlive its requests.
class BenchTarget {
 public:
  virtual ~BenchTarget() = default;
  // Fails if the server cannot be reached or serves no model. Call it before Send().
  virtual absl::StatusOr<TargetModel> Connect() = 0;
  // Null if the server cannot count.
  virtual TokenCounter Counter() = 0;
  // `done` runs once, on another thread. Outcome.kind is `number`.
  virtual void Send(const BenchPrompt& prompt, int number, double due_s,
                    std::function<void(Outcome)> done) = 0;
};

// Sends the prompts at their times, in seconds after the start and in ascending order; returns when
// all that were sent have ended, with outcomes in the order of the prompts.
std::vector<Outcome> SendPrompts(BenchTarget* target, const std::vector<BenchPrompt>& prompts,
                                 const std::vector<double>& times, const OpenLoopOptions& loop);

std::unique_ptr<BenchTarget> MakeTarget(const TargetOptions& options);
// The ones that are not "baton" (bench_http.cc).
std::unique_ptr<BenchTarget> MakeHttpTarget(const TargetOptions& options);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_TARGET_H_
