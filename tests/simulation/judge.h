// Judges one answer as it grows: what a router sends for one call, delta by delta, against the
// oracle; and what a call may fail with.
#ifndef BATON_TESTS_SIMULATION_JUDGE_H_
#define BATON_TESTS_SIMULATION_JUDGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/request/response_sink.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

// What the cluster that was drawn may refuse and lose.
struct MayFail {
  // Workers, routers and links break: any reason that docs/errors.md has for that.
  bool faults = false;
  // Reasons of bounds that may be reached.
  std::set<std::string> bounds;
  // The largest choice count and the KV blocks of the smallest decode workers: what needs more can
  // never fit there.
  int least_sequences = 0;
  int least_blocks = 0;
};

// Of one call to one router. Fails the world if anything is not as promised.
class Judge final : public router::ResponseSink {
 public:
  // `on_end` is called once, at the end that the router gives.
  Judge(World& world, const MayFail& may_fail, const RequestSpec& spec,
        std::shared_ptr<const Expected> expected, std::string request_id,
        std::function<void(const absl::Status&)> on_end);

  void Send(const v1::GenerateResponse& delta) override;
  void Heartbeat(const v1::GenerateResponse& empty) override;
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
  void Fail(const absl::Status& error) override;
  void Abort(const absl::Status& why) override;

  // The client has cancelled, or its deadline has passed.
  void OnCancelled() { cancelled_ = true; }
  bool ended() const { return ended_; }
  bool begun() const { return messages_ > 0; }  // something was sent before the end
  int64_t tokens() const { return tokens_; }
  int heartbeats() const { return heartbeats_; }

 private:
  struct Choice {
    size_t tokens = 0;
    std::string text;
    bool finished = false;
  };
  void Wrong(const std::string& what);
  void Take(const v1::GenerateResponse& delta);
  void TakeTokens(const v1::GenerateResponse& delta, Choice& choice, const Answer& expected);
  void TakePromptLogprobs(const v1::GenerateResponse& delta);
  void TakeEnd(const v1::GenerateResponse& delta, Choice& choice, const Answer& expected);
  void CheckUsage(const v1::GenerateResponse& delta);
  // Empty: it may fail so.
  std::string WhyNot(const absl::Status& error) const;

  World& world_;
  const MayFail& may_fail_;
  const RequestSpec& spec_;
  const std::shared_ptr<const Expected> expected_;
  const std::string request_id_;
  const std::function<void(const absl::Status&)> on_end_;
  std::vector<Choice> choices_;
  int messages_ = 0;
  int heartbeats_ = 0;
  int64_t tokens_ = 0;
  int64_t reported_tokens_ = 0;  // by the last usage
  bool prompt_logprobs_seen_ = false;
  bool cancelled_ = false;
  bool ended_ = false;
  bool aborted_ = false;
};

// Whether a decode worker as small as the smallest has no room for it, with that reason.
bool CanNeverFit(const RequestSpec& spec, const MayFail& may_fail, const absl::Status& error);

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_JUDGE_H_
