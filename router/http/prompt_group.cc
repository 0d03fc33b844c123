#include "router/http/prompt_group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "router/request/usage_sum.h"
#include "router/request/work_pool.h"

namespace baton::router {
namespace {

// An error of a prompt's text names the prompt.
absl::Status OfPrompt(const absl::Status& error, int prompt) {
  const std::string field = ErrorField(error);
  if (field != "text" && field != "token_ids") return error;
  absl::string_view message = error.message();
  absl::ConsumePrefix(&message, absl::StrCat(field, ": "));
  const std::string name = absl::StrCat("prompt[", prompt, "]");
  return WithDetails(absl::Status(error.code(), absl::StrCat(name, ": ", message)),
                     ErrorReason(error), name, ErrorRetryAfter(error));
}

}  // namespace

PromptGroup::PromptGroup(RouterParts& parts, const Caller& caller, int prompts)
    : parts_(parts), usages_(prompts) {
  for (int i = 0; i < prompts; ++i) {
    prompts_.push_back(std::make_unique<Part>(*this, i, parts, caller));
  }
}

void PromptGroup::ShowSpecialTokens(const std::vector<int32_t>& ids) {
  for (const auto& prompt : prompts_) prompt->call->ShowSpecialTokens(ids);
}

void PromptGroup::Start(std::vector<v1::GenerateRequest> requests, absl::Time deadline,
                        ResponseSink* sink) {
  if (single()) return prompts_[0]->call->Start(std::move(requests[0]), deadline, sink);
  const auto ended = [this] {
    absl::MutexLock lock(&mutex_);
    return ended_;
  };
  {
    absl::MutexLock lock(&mutex_);
    sink_ = sink;
    choices_per_prompt_ = std::clamp(requests[0].n(), 1, kMaxChoices);  // the call checks n
    token_counts_.resize(requests.size() * choices_per_prompt_);
  }
  for (size_t i = 0; i < prompts_.size() && !ended(); ++i) {
    prompts_[i]->call->Start(std::move(requests[i]), deadline, prompts_[i].get());
  }
  // A failure cancels the calls that run at that moment; one may have been started since.
  if (ended()) OnSinkGone();
}

void PromptGroup::Refuse(const absl::Status& error, ResponseSink* sink) {
  prompts_[0]->call->Refuse(error, sink);
}

void PromptGroup::Cancel() {
  for (const auto& prompt : prompts_) prompt->call->Cancel();
}

void PromptGroup::OnSinkGone() {
  if (!single()) Cancel();
  for (const auto& prompt : prompts_) prompt->call->OnSinkGone();
}

v1::GenerateResponse PromptGroup::Combined(int prompt, const v1::GenerateResponse& delta) {
  v1::GenerateResponse combined = delta;
  combined.set_choice(prompt * choices_per_prompt_ + delta.choice());
  usages_[prompt] = delta.usage();
  v1::Usage& sum = *combined.mutable_usage();
  sum.Clear();
  for (const v1::Usage& usage : usages_) {
    sum.set_prompt_tokens(SaturatedSum(sum.prompt_tokens(), usage.prompt_tokens()));
    sum.set_cached_prompt_tokens(
        SaturatedSum(sum.cached_prompt_tokens(), usage.cached_prompt_tokens()));
    sum.set_generated_tokens(SaturatedSum(sum.generated_tokens(), usage.generated_tokens()));
    sum.set_kv_bytes(sum.kv_bytes() + usage.kv_bytes());
    sum.set_dropped_prompt_tokens(
        SaturatedSum(sum.dropped_prompt_tokens(), usage.dropped_prompt_tokens()));
    sum.set_draft_tokens(SaturatedSum(sum.draft_tokens(), usage.draft_tokens()));
    sum.set_accepted_draft_tokens(
        SaturatedSum(sum.accepted_draft_tokens(), usage.accepted_draft_tokens()));
  }
  return combined;
}

void PromptGroup::Part::Send(const v1::GenerateResponse& delta) {
  absl::MutexLock lock(&group_.mutex_);
  if (!group_.ended_) group_.sink_->Send(group_.Combined(index_, delta));
}

void PromptGroup::Part::Heartbeat(const v1::GenerateResponse& empty) {
  absl::MutexLock lock(&group_.mutex_);
  if (!group_.ended_) group_.sink_->Heartbeat(empty);
}

absl::Status PromptGroup::Part::Accepts(const v1::GenerateResponse& delta) const {
  absl::MutexLock lock(&group_.mutex_);
  return group_.ended_ ? absl::OkStatus() : group_.sink_->Accepts(delta);
}

void PromptGroup::Part::Finish(const v1::GenerateResponse& last,
                               absl::Span<const int> token_counts) {
  absl::MutexLock lock(&group_.mutex_);
  if (group_.ended_) return;
  std::copy(token_counts.begin(), token_counts.end(),
            group_.token_counts_.begin() + index_ * group_.choices_per_prompt_);
  const v1::GenerateResponse combined = group_.Combined(index_, last);
  if (++group_.finished_ < group_.prompts_.size()) return group_.sink_->Send(combined);
  group_.ended_ = true;
  group_.sink_->Finish(combined, group_.token_counts_);
}

void PromptGroup::Part::Fail(const absl::Status& error) {
  {
    absl::MutexLock lock(&group_.mutex_);
    if (std::exchange(group_.ended_, true)) return;
    group_.sink_->Fail(OfPrompt(error, index_));
  }
  // Not here, under the lock of this prompt's call. If the pool is full, the others end when the
  // answer has left.
  group_.parts_.pool.TryRun([group = group_.shared_from_this()] { group->Cancel(); });
}

void PromptGroup::Part::Abort(const absl::Status& why) {
  absl::MutexLock lock(&group_.mutex_);
  if (group_.ended_) group_.sink_->Abort(why);
}

}  // namespace baton::router
