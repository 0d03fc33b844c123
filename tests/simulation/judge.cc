#include "tests/simulation/judge.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "tests/simulation/hash_engine.h"

namespace baton::simulation {
namespace {

using enum absl::StatusCode;

// docs/errors.md, as far as a correct request can meet it.
struct Reason {
  absl::string_view name;
  absl::StatusCode code;
  bool with_retry_info;
  bool is_bound;     // else something has broken
  bool after_begin;  // may also end an answer of which something was sent
};
constexpr Reason kReasons[] = {
    {"TOO_MANY_REQUESTS", kResourceExhausted, true, true, false},
    {"TOO_MANY_PROMPT_TOKENS", kResourceExhausted, true, true, false},
    {"TOKENIZER_QUEUE_FULL", kResourceExhausted, true, true, false},
    {"QUEUE_FULL", kResourceExhausted, true, true, false},
    {"TENANT_LIMIT", kResourceExhausted, true, true, false},
    {"TTFT_SLO_UNREACHABLE", kResourceExhausted, true, true, false},
    {"DEADLINE_UNREACHABLE", kResourceExhausted, true, true, false},
    {"SURVIVORS_FULL", kResourceExhausted, true, false, false},
    {"NO_WORKER", kUnavailable, true, false, false},
    {"DRAINING", kUnavailable, true, false, true},
    {"WORKER_LOST", kUnavailable, true, false, true},
    {"WORKER_STALLED", kUnavailable, true, false, true},
    {"WORKER_EXPIRED", kUnavailable, true, false, true},
    {"WORKER_SUSPECT", kUnavailable, true, false, true},
    {"PREFILL_SUSPECT", kUnavailable, true, false, true},
    {"PREFILL_LOST", kUnavailable, true, false, true},
    {"STALE_EPOCH", kUnavailable, true, false, true},
    {"CHECKSUM", kUnavailable, true, false, true},
    {"PROTOCOL", kUnavailable, true, false, true},
    {"MALFORMED_REQUEST", kUnavailable, true, false, true},
    {"WORKERS_DIED", kInternal, false, false, true},
    {"RETRY_BUDGET_EXHAUSTED", kUnavailable, true, false, true},
};

bool SameLogprobs(const v1::TokenLogprobs& found, const model::SampledToken& expected) {
  if (found.token_id() != expected.token_id || found.logprob() != expected.logprob ||
      found.top_size() != static_cast<int>(expected.top.size())) {
    return false;
  }
  for (int i = 0; i < found.top_size(); ++i) {
    const model::TokenLogprob& top = expected.top[static_cast<size_t>(i)];
    if (found.top(i).token_id() != top.token_id || found.top(i).logprob() != top.logprob) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool CanNeverFit(const RequestSpec& spec, const MayFail& may_fail, const absl::Status& error) {
  if (!absl::IsResourceExhausted(error)) return false;
  const std::string reason = ErrorReason(error);
  const int sequences = std::max(spec.n, spec.beam_width);
  if (reason == "TOO_MANY_CHOICES") return sequences > may_fail.least_sequences;
  if (reason != "KV_POOL_TOO_SMALL") return false;
  const int prompt = static_cast<int>(spec.prompt.size());
  int blocks = (prompt + spec.max_tokens - 1 + kBlockTokens - 1) / kBlockTokens;
  if (spec.beam_width > 0) {
    const int shared = prompt / kBlockTokens;
    blocks = shared + (blocks - shared + 1) * spec.beam_width;
  }
  return blocks > may_fail.least_blocks;
}

Judge::Judge(World& world, const MayFail& may_fail, const RequestSpec& spec,
             std::shared_ptr<const Expected> expected, std::string request_id,
             std::function<void(const absl::Status&)> on_end)
    : world_(world),
      may_fail_(may_fail),
      spec_(spec),
      expected_(std::move(expected)),
      request_id_(std::move(request_id)),
      on_end_(std::move(on_end)),
      choices_(static_cast<size_t>(spec.n)) {}

void Judge::Wrong(const std::string& what) { world_.Fail(absl::StrCat(request_id_, ": ", what)); }

void Judge::Send(const v1::GenerateResponse& delta) {
  Take(delta);
  const bool all_finished = std::all_of(choices_.begin(), choices_.end(),
                                        [](const Choice& choice) { return choice.finished; });
  if (all_finished) Wrong("all choices have finished, and the answer has not");
}

void Judge::Take(const v1::GenerateResponse& delta) {
  if (ended_) return Wrong("a delta after the end");
  if (delta.choice() < 0 || delta.choice() >= spec_.n) {
    return Wrong(absl::StrCat("a delta of choice ", delta.choice()));
  }
  Choice& choice = choices_[static_cast<size_t>(delta.choice())];
  const Answer& expected = expected_->answers[static_cast<size_t>(delta.choice())];
  if (choice.finished) return Wrong("a delta after the end of its choice");
  const bool is_last = delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  if ((messages_ == 0 || is_last) && delta.request_id() != request_id_) {
    Wrong("the first or last message lacks its request id");
  }
  ++messages_;
  TakePromptLogprobs(delta);
  TakeTokens(delta, choice, expected);
  if (is_last) TakeEnd(delta, choice, expected);
  CheckUsage(delta);
}

void Judge::TakePromptLogprobs(const v1::GenerateResponse& delta) {
  if (delta.prompt_logprobs().empty()) return;
  if (prompt_logprobs_seen_) Wrong("prompt logprobs twice");
  prompt_logprobs_seen_ = true;
  const auto& expected = expected_->prompt_logprobs;
  bool same = delta.prompt_logprobs_size() == static_cast<int>(expected.size());
  for (int i = 0; same && i < delta.prompt_logprobs_size(); ++i) {
    same = SameLogprobs(delta.prompt_logprobs(i), expected[static_cast<size_t>(i)]);
  }
  if (!same) Wrong("wrong prompt logprobs");
}

void Judge::TakeTokens(const v1::GenerateResponse& delta, Choice& choice, const Answer& expected) {
  if (!spec_.return_token_ids && !delta.token_ids().empty()) Wrong("token ids not asked for");
  const int logprobs =
      spec_.sampling.logprobs && spec_.return_token_ids ? delta.token_ids_size() : 0;
  if (spec_.return_token_ids && delta.logprobs_size() != logprobs) {
    return Wrong(absl::StrCat(delta.logprobs_size(), " log probabilities of ",
                              delta.token_ids_size(), " tokens"));
  }
  for (int i = 0; i < delta.token_ids_size(); ++i, ++choice.tokens, ++tokens_) {
    if (choice.tokens >= expected.tokens.size() ||
        delta.token_ids(i) != expected.tokens[choice.tokens].token_id) {
      return Wrong(absl::StrCat(
          "token ", choice.tokens, " of choice ", delta.choice(), " is ", delta.token_ids(i),
          ", expected ",
          choice.tokens < expected.tokens.size() ? expected.tokens[choice.tokens].token_id : -1,
          " of ", expected.tokens.size(), " behind a prompt of ", spec_.prompt.size()));
    }
    if (logprobs > 0 && !SameLogprobs(delta.logprobs(i), expected.tokens[choice.tokens])) {
      Wrong(absl::StrCat("wrong log probabilities of token ", choice.tokens));
    }
  }
  choice.text += delta.text();
  if (!absl::StartsWith(expected.text, choice.text)) {
    Wrong(absl::StrCat("the text of choice ", delta.choice(), " is \"", choice.text,
                       "\", expected \"", expected.text, "\""));
  }
}

void Judge::TakeEnd(const v1::GenerateResponse& delta, Choice& choice, const Answer& expected) {
  choice.finished = true;
  const bool stopped = delta.finish_reason() == v1::FINISH_REASON_STOP;
  if (stopped != expected.stopped || choice.text != expected.text ||
      (spec_.return_token_ids && choice.tokens != expected.tokens.size())) {
    Wrong(absl::StrCat("choice ", delta.choice(), " ends with reason ", delta.finish_reason(),
                       " after ", choice.tokens, " of ", expected.tokens.size(), " tokens, \"",
                       choice.text, "\" of \"", expected.text, "\""));
  }
  if (delta.matched_stop() != expected.matched_stop) {
    Wrong(absl::StrCat("ended by \"", delta.matched_stop(), "\", expected \"",
                       expected.matched_stop, "\""));
  }
  if (delta.beam_score() != expected.beam_score) Wrong("a beam of another score");
  if (spec_.beam_width == 0 && delta.seed() != spec_.sampling.seed) Wrong("another seed");
  if (!delta.has_timings() || delta.timings().ttft_ms() < 0 || delta.timings().decode_ms() < 0) {
    Wrong(absl::StrCat("no timings, or times before the request: {",
                       delta.timings().ShortDebugString(), "}"));
  }
}

void Judge::CheckUsage(const v1::GenerateResponse& delta) {
  const v1::Usage& usage = delta.usage();
  if (usage.prompt_tokens() != static_cast<int>(spec_.prompt.size()) ||
      usage.cached_prompt_tokens() > usage.prompt_tokens() || usage.kv_bytes() < 0 ||
      usage.generated_tokens() < reported_tokens_ ||
      (spec_.return_token_ids && usage.generated_tokens() != tokens_)) {
    Wrong(absl::StrCat("usage {", usage.ShortDebugString(), "} of ", tokens_, " tokens after ",
                       reported_tokens_));
  }
  reported_tokens_ = usage.generated_tokens();
}

void Judge::Heartbeat(const v1::GenerateResponse& empty) {
  ++heartbeats_;
  if (ended_ || messages_ == 0) return Wrong("a heartbeat before the first token or after the end");
  if (empty.choice() < 0 || empty.choice() >= spec_.n ||
      choices_[static_cast<size_t>(empty.choice())].finished) {
    return Wrong("a heartbeat of a choice that has ended");
  }
  if (!empty.text().empty() || !empty.token_ids().empty() || !empty.logprobs().empty() ||
      !empty.prompt_logprobs().empty() || empty.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    Wrong("a heartbeat that says more");
  }
  CheckUsage(empty);
}

void Judge::Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) {
  Take(last);
  ended_ = true;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].finished) Wrong(absl::StrCat("the answer ends without choice ", i));
    if (i >= token_counts.size() ||
        token_counts[i] != static_cast<int>(expected_->answers[i].tokens.size())) {
      Wrong(absl::StrCat("another number of tokens in choice ", i));
    }
  }
  if (spec_.prompt_logprobs && spec_.prompt.size() > 1 && !prompt_logprobs_seen_) {
    Wrong("no prompt logprobs");
  }
  if (!spec_.return_token_ids) tokens_ = last.usage().generated_tokens();
  on_end_(absl::OkStatus());
}

void Judge::Fail(const absl::Status& error) {
  if (ended_) return Wrong(absl::StrCat("fails after its end: ", error.ToString()));
  ended_ = true;
  if (const std::string why = WhyNot(error); !why.empty()) {
    Wrong(absl::StrCat(error.ToString(), " (", ErrorReason(error), ") after ", messages_,
                       " deltas: ", why));
  }
  on_end_(error);
}

std::string Judge::WhyNot(const absl::Status& error) const {
  const std::string reason = ErrorReason(error);
  if (absl::IsDeadlineExceeded(error)) {
    return world_.now() >= spec_.deadline ? "" : "the deadline has not passed";
  }
  if (absl::IsCancelled(error)) return cancelled_ ? "" : "the client has not cancelled";
  if (reason == "KV_POOL_TOO_SMALL" || reason == "TOO_MANY_CHOICES") {
    return CanNeverFit(spec_, may_fail_, error) ? "" : "it fits";
  }
  const auto* known = std::find_if(std::begin(kReasons), std::end(kReasons),
                                   [&reason](const Reason& r) { return r.name == reason; });
  if (known == std::end(kReasons)) return "no reason for a correct request";
  if (error.code() != known->code) return "another code than docs/errors.md has";
  if (known->with_retry_info && !ErrorRetryAfter(error)) return "no time to retry";
  if (begun() && !known->after_begin) return "no end for an answer that has begun";
  const bool allowed = known->is_bound ? may_fail_.bounds.contains(reason) : may_fail_.faults;
  return allowed ? "" : "nothing was broken or bounded so";
}

void Judge::Abort(const absl::Status&) {
  if (!ended_ || aborted_ || world_.now() < spec_.deadline) {
    Wrong("aborted before its end, before its deadline, or twice");
  }
  aborted_ = true;
}

}  // namespace baton::simulation
