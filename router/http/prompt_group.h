// The calls of one HTTP request, one for each of its prompts, as one answer.
#ifndef BATON_ROUTER_HTTP_PROMPT_GROUP_H_
#define BATON_ROUTER_HTTP_PROMPT_GROUP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/request/generate_call.h"
#include "router/request/response_sink.h"
#include "router/request/router_parts.h"

namespace baton::router {

// Has the methods of GenerateCall. The choices of prompt p are p * n to p * n + n - 1, and the
// usage is the sum of the prompts'. The first failure of a prompt is the failure of the request,
// which cancels the other prompts; it names the prompt, as in "prompt[2]", if its text is at fault.
//
// Thread-safe. Of the locks, that of a call is taken before that of the group, and no call is
// called under the group's.
class PromptGroup final : public std::enable_shared_from_this<PromptGroup> {
 public:
  // `prompts`: 1 or more.
  PromptGroup(RouterParts& parts, const Caller& caller, int prompts);

  void ShowSpecialTokens(const std::vector<int32_t>& ids);
  void Rendered(absl::Duration begin, absl::Duration end, int dropped_tokens) {
    for (const auto& prompt : prompts_) prompt->call->Rendered(begin, end, dropped_tokens);
  }
  // One request for each prompt, all with the same n.
  void Start(std::vector<v1::GenerateRequest> requests, absl::Time deadline, ResponseSink* sink);
  void Refuse(const absl::Status& error, ResponseSink* sink);
  void Cancel();
  void OnSinkGone();

 private:
  // The sink of one prompt's call.
  class Part final : public ResponseSink {
   public:
    Part(PromptGroup& group, int index, RouterParts& parts, const Caller& caller)
        : call(std::make_shared<GenerateCall>(parts, caller)), group_(group), index_(index) {}
    void Send(const v1::GenerateResponse& delta) override;
    void Heartbeat(const v1::GenerateResponse& empty) override;
    absl::Status Accepts(const v1::GenerateResponse& delta) const override;
    void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
    void Fail(const absl::Status& error) override;
    void Abort(const absl::Status& why) override;

    const std::shared_ptr<GenerateCall> call;

   private:
    PromptGroup& group_;
    const int index_;
  };

  bool single() const { return prompts_.size() == 1; }
  v1::GenerateResponse Combined(int prompt, const v1::GenerateResponse& delta)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RouterParts& parts_;
  std::vector<std::unique_ptr<Part>> prompts_;

  absl::Mutex mutex_;
  ResponseSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int choices_per_prompt_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;             // the sink has its Finish or Fail
  std::vector<v1::Usage> usages_ ABSL_GUARDED_BY(mutex_);  // by prompt, so far
  std::vector<int> token_counts_ ABSL_GUARDED_BY(mutex_);  // by choice, of finished prompts
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_PROMPT_GROUP_H_
