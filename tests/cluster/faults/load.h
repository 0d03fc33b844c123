// Requests whose right answers are known, clients that send them, and the judge of what comes back.
#ifndef BATON_TESTS_CLUSTER_FAULTS_LOAD_H_
#define BATON_TESTS_CLUSTER_FAULTS_LOAD_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "cli/load_generator.h"
#include "common/model/sampler.h"
#include "tests/testing/oracle.h"

namespace baton::testing {

struct Case {
  std::vector<int32_t> prompt;
  model::SamplingParams sampling;
  std::vector<int32_t> expected;  // by the oracle; never ends early
};

struct CaseShape {
  int min_prompt = 1, max_prompt = 300;  // tokens, at most 512
  int min_answer = 1, max_answer = 20;
};

// A third is greedy, the others drawn by all samplers; half begin with one of eight shared
// prefixes.
std::vector<Case> MakeCases(Oracle& oracle, int count, const CaseShape& shape, uint64_t seed);

baton::v1::GenerateRequest ToRequest(const Case& c);

struct Answer {
  absl::Status status;
  std::vector<int32_t> tokens;
  baton::v1::FinishReason finish = baton::v1::FINISH_REASON_UNSPECIFIED;
  baton::v1::Usage usage;
  absl::Time begin, first_token, end;
  std::vector<absl::Time> token_times;  // of each message that had tokens
};

// One request to a router. Run() is for one thread, once; Cancel() for any.
class ClientCall {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(120);
    std::string cache_salt;  // a new one: nothing is cached anywhere
    // After each message, with the tokens so far. The call's reading waits for it.
    std::function<void(int tokens)> on_tokens;
  };
  Answer Run(const std::shared_ptr<grpc::Channel>& router, const Case& c, const Options& options);
  void Cancel() { context_->TryCancel(); }

 private:
  const std::shared_ptr<grpc::ClientContext> context_ = std::make_shared<grpc::ClientContext>();
};

// What became of many requests. Thread-safe.
class Tally {
 public:
  enum class Verdict { kRight, kError, kCancelled, kWrong };
  // Right: all tokens and a finish. Error: a code, a reason, no finish, and what came before is a
  // beginning of the right answer. Anything else is wrong. `expect_cancel`: a cancellation, or an
  // answer that was faster, is what was asked for.
  Verdict Count(const Case& c, const Answer& answer, bool expect_cancel = false);
  // Errors of the connection to the router itself have no reason; only where a router dies.
  void AllowLostRouter() { router_may_die_ = true; }

  int64_t requests() const;
  int64_t right() const;
  int64_t errors() const;
  int64_t wrong() const;
  std::string ErrorsByReason() const;  // "UNAVAILABLE PREFILL_LOST 3, …"
  std::map<std::string, int64_t> reasons() const;
  std::vector<std::string> examples() const;  // of wrong answers

 private:
  std::atomic<bool> router_may_die_{false};
  mutable absl::Mutex mutex_;
  int64_t right_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t wrong_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t errors_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> reasons_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> examples_ ABSL_GUARDED_BY(mutex_);
};

// Clients that send one case after another until stopped.
class BackgroundLoad {
 public:
  struct Options {
    int clients = 2;
    double abort_share = 0;  // cancelled after a random number of tokens
    bool cold = true;        // a new salt for each request
    absl::Duration timeout = absl::Seconds(120);
    // Between an answer and the client's next request; without, four clients fill two cores.
    absl::Duration pause;
    uint64_t seed = 1;
    std::function<void(const Answer&)> on_answer;  // from any client's thread
  };
  BackgroundLoad(const std::shared_ptr<grpc::Channel>& router, const std::vector<Case>& cases,
                 const Options& options, Tally& tally);
  ~BackgroundLoad() { Stop(); }
  // Lets what runs end.
  void Stop();
  int64_t generated_tokens() const { return tokens_; }  // of whole answers
  // Until `count` answers are right; false once one is not, and no request was to be aborted.
  bool AwaitRight(int64_t count);

 private:
  struct Client {
    std::mt19937_64 random;
    absl::Duration pause;  // before its next request
    const Case* sent = nullptr;
    bool aborts = false;
    std::shared_ptr<grpc::ClientContext> context;
    absl::Time begin;
  };
  std::optional<cli::LoadRequest> Next(Client& client);
  void Take(Client& client, cli::Outcome outcome);
  // For `pause`, or until stopped. False once stopped.
  bool Pause(absl::Duration pause);

  cli::LoadGenerator generator_;
  const std::vector<Case>& cases_;
  const Options options_;
  Tally& tally_;
  std::atomic<int64_t> tokens_{0};
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t right_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t not_right_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Client> clients_;  // each for its caller's thread
  std::thread thread_;
};

// A cache salt that nobody has used before.
std::string NewSalt();

// The q-quantile of the times between messages, all answers together; zero without any.
absl::Duration GapQuantile(const std::vector<Answer>& answers, double q);

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_LOAD_H_
