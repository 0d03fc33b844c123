// Where the results of jobs go: a first token, the scores of labels, or an embedding.
#ifndef BATON_COMMON_PREFILL_JOB_SINK_H_
#define BATON_COMMON_PREFILL_JOB_SINK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/transfer/kv_sender.h"

namespace baton::prefill {

// The loop calls it on its thread, but for a Finish before the job is admitted.
class JobSink {
 public:
  virtual ~JobSink() = default;
  // The job runs.
  virtual void OnStarted() {}
  // The loop runs, and still has the job. Several jobs of one call get the same `now`.
  virtual void OnHeartbeat(absl::Duration now) {}
  // Called exactly once, as the last. OK: the job has delivered its result.
  virtual void Finish(const absl::Status& status) = 0;
};

struct FirstToken {
  int32_t token_id = 0;
  v1::TokenLogprobs logprobs;  // empty if they were not requested
  int cached_prompt_tokens = 0;
  double queue_ms = 0;
  double prefill_ms = 0;
};

// The sink of a job that draws a token after its prompt.
class TokenSink : public JobSink {
 public:
  // The log probabilities of the prompt's tokens from first_position on, if they were requested.
  // All of them come before the first token.
  virtual void OnPromptLogprobs(int first_position, std::vector<v1::TokenLogprobs> logprobs) = 0;
  virtual void OnFirstToken(FirstToken token) = 0;
};

// The sink of a job that scores labels after its prompt, or embeds the prompt.
class ScoreSink : public JobSink {
 public:
  virtual void OnEmbedding(std::vector<float> embedding, int cached_prompt_tokens) = 0;
  // The log probabilities of each label's tokens.
  virtual void OnScores(std::vector<std::vector<float>> labels, int cached_prompt_tokens) = 0;
};

// Sends the first token behind the KV of its prompt.
class TransferSink final : public TokenSink {
 public:
  explicit TransferSink(std::shared_ptr<transfer::FrameSender> sender)
      : sender_(std::move(sender)) {}

  void OnPromptLogprobs(int first_position, std::vector<v1::TokenLogprobs> logprobs) override {
    sender_->SendPromptLogprobs(first_position, std::move(logprobs));
  }
  void OnFirstToken(FirstToken token) override {
    sender_->SendFirstToken(token.token_id, std::move(token.logprobs));
    sender_->SendCommit(token.queue_ms, token.prefill_ms);
  }
  void Finish(const absl::Status& status) override { sender_->Finish(status); }

 private:
  const std::shared_ptr<transfer::FrameSender> sender_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_JOB_SINK_H_
