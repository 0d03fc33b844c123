#include "router/request/entrance.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/continuation_line.h"

namespace baton::router {
namespace {

absl::Status Overloaded(const RouterParts& parts, absl::string_view reason,
                        absl::string_view message, absl::Duration retry_after) {
  parts.metrics.RequestRejected(reason);
  return WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, reason, message),
                        retry_after);
}

}  // namespace

absl::StatusOr<Entrance> Enter(const RouterParts& parts, const Caller& caller) {
  if (parts.continuations.KeepsNewOut(parts.awake.SinceStart())) {
    return Overloaded(parts, "SURVIVORS_FULL",
                      "workers were lost, and the others have no room yet for what they had",
                      parts.admission.RetryAfter());
  }
  Entrance entrance;
  if (caller.tenant) {
    absl::StatusOr<TenantLimits::Place> place = parts.tenants.Enter(*caller.tenant, caller.limits);
    if (!place.ok()) {
      parts.metrics.RequestRejected(ErrorReason(place.status()));
      return place.status();
    }
    entrance.tenant_place = *std::move(place);
  }
  entrance.ticket = parts.admission.TryEnter();
  if (!entrance.ticket) {
    return Overloaded(parts, "TOO_MANY_REQUESTS",
                      absl::StrCat(parts.options.max_inflight_requests,
                                   " requests are running, which is this router's limit"),
                      parts.admission.RetryAfter());
  }
  return entrance;
}

absl::Status RouterDrains() {
  return WithRetryAfter(MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                                  "this router takes no new requests: it is shutting down"),
                        absl::Seconds(1));
}

absl::Status RouterStopped() {
  return WithRetryAfter(MakeError(absl::StatusCode::kUnavailable, "ROUTER_STOPPED",
                                  "this router has shut down before the answer was complete"),
                        absl::Seconds(1));
}

absl::Status AddPrompt(const RouterParts& parts, int64_t tokens, Entrance* entrance) {
  if (entrance->ticket->TryAddPrompt(tokens)) return absl::OkStatus();
  return Overloaded(
      parts, "TOO_MANY_PROMPT_TOKENS",
      absl::StrCat("with this prompt, more than ", parts.options.max_inflight_prompt_tokens,
                   " prompt tokens would be running, this router's limit"),
      parts.admission.RetryAfter());
}

// With a queue as long as the deadlines allow, all requests would be late as soon as anything took
// longer than estimated: so a prompt may wait twice as long as estimated.
absl::Status CheckDeadline(const RouterParts& parts, absl::Time deadline, int64_t tokens,
                           int64_t max_tokens) {
  const absl::Duration left = deadline - parts.clock.Now();
  if (left <= absl::ZeroDuration()) {
    parts.metrics.RequestRejected("DEADLINE_UNREACHABLE");
    return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_UNREACHABLE",
                     "the request's deadline passed before any worker was asked");
  }
  const Admission::Estimate estimate = parts.admission.EstimatedTimes(tokens, max_tokens);
  const absl::Duration answer = estimate.last_token - estimate.first_token;
  const absl::Duration needed = 2 * estimate.first_token + answer;
  if (needed <= left) return absl::OkStatus();
  return Overloaded(
      parts, "DEADLINE_UNREACHABLE",
      absl::StrCat("the prompts before this one and its own take about ",
                   absl::ToInt64Milliseconds(estimate.first_token), " ms, and perhaps twice that, ",
                   "the answer ", absl::ToInt64Milliseconds(answer),
                   " ms more, and its deadline is in ", absl::ToInt64Milliseconds(left), " ms"),
      // By then the queue is short enough.
      std::max((needed - left) / 2, absl::Milliseconds(50)));
}

absl::Status Hold(const RouterParts& parts, int64_t bytes, RequestBytes::Share* held) {
  return held->TryGrow(bytes) ? absl::OkStatus() : TooManyRequestBytes(parts);
}

absl::Status TooManyRequestBytes(const RouterParts& parts) {
  return Overloaded(
      parts, "TOO_MANY_REQUEST_BYTES",
      absl::StrCat("with this request, the requests in this router would be more than ",
                   parts.options.max_inflight_request_bytes, " bytes, which is its limit"),
      parts.admission.RetryAfter());
}

absl::Status TokenizerQueueFull(const RouterParts& parts) {
  return Overloaded(parts, "TOKENIZER_QUEUE_FULL",
                    absl::StrCat(parts.options.max_queued_prompts,
                                 " prompts wait to be tokenized, which is this router's limit"),
                    parts.admission.RetryAfter());
}

}  // namespace baton::router
