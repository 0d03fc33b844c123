#include "router/request/admission.h"

#include <algorithm>

namespace baton::router {
namespace {

constexpr absl::Duration kShortestRetry = absl::Milliseconds(50);
constexpr absl::Duration kLongestRetry = absl::Seconds(30);
constexpr int kLoadedRequests = 8;
constexpr double kNearlyFull = 0.75;
constexpr int kSamplesToTrust = 8;
constexpr absl::Duration kShortestMeasure = absl::Seconds(1);

}  // namespace

std::optional<Admission::Ticket> Admission::TryEnter() {
  absl::MutexLock lock(&mutex_);
  if (inside_.requests >= limits_.requests) return std::nullopt;
  NoteTime();
  ++tickets_;
  ++inside_.requests;
  ++inside_.without_prompt;
  on_change_(inside_);
  return Ticket(this);
}

bool Admission::TryAddPrompt(int64_t tokens, Ticket* ticket) {
  absl::MutexLock lock(&mutex_);
  if (inside_.prompt_tokens > 0 && inside_.prompt_tokens + tokens > limits_.prompt_tokens) {
    return false;
  }
  NoteTime();
  inside_.prompt_tokens += tokens;
  --inside_.without_prompt;
  ticket->prompt_tokens_ = tokens;
  ticket->prompt_known_ = true;
  ticket->waiting_ = true;
  ++waiting_;
  waiting_tokens_ += tokens;
  on_change_(inside_);
  return true;
}

void Admission::OnFirstToken(Ticket* ticket) {
  absl::MutexLock lock(&mutex_);
  if (!std::exchange(ticket->waiting_, false)) return;
  NoteTime();
  if (Loaded()) prompt_tokens_done_.Add(loaded_time_, static_cast<double>(ticket->prompt_tokens_));
  EndWaiting(ticket->prompt_tokens_);
}

std::optional<Admission::FurtherPrompt> Admission::TryAddFurther(int64_t tokens, bool always) {
  absl::MutexLock lock(&mutex_);
  if (!always && inside_.prompt_tokens + tokens > limits_.prompt_tokens) return std::nullopt;
  NoteTime();
  inside_.prompt_tokens += tokens;
  ++waiting_;
  waiting_tokens_ += tokens;
  on_change_(inside_);
  return FurtherPrompt(this, tokens);
}

void Admission::EndPrompt(int64_t tokens, bool computed) {
  absl::MutexLock lock(&mutex_);
  NoteTime();
  if (computed && Loaded()) prompt_tokens_done_.Add(loaded_time_, static_cast<double>(tokens));
  EndWaiting(tokens);
  inside_.prompt_tokens -= tokens;
  on_change_(inside_);
}

void Admission::Leave(Ticket* ticket) {
  absl::MutexLock lock(&mutex_);
  FreePlace(ticket);
}

void Admission::Forget(Ticket* ticket) {
  absl::MutexLock lock(&mutex_);
  FreePlace(ticket);
  --tickets_;
}

void Admission::FreePlace(Ticket* ticket) {
  if (!std::exchange(ticket->inside_, false)) return;
  NoteTime();
  if (std::exchange(ticket->waiting_, false)) EndWaiting(ticket->prompt_tokens_);
  // Only those that took a prompt in: refusals leave fast, and would promise too much.
  if (ticket->prompt_known_ && NearlyFull()) completions_.Add(full_time_, 1);
  --inside_.requests;
  if (!ticket->prompt_known_) --inside_.without_prompt;
  inside_.prompt_tokens -= ticket->prompt_tokens_;
  on_change_(inside_);
}

void Admission::EndWaiting(int64_t tokens) {
  --waiting_;
  waiting_tokens_ -= tokens;
}

bool Admission::Loaded() const { return waiting_ >= kLoadedRequests; }

bool Admission::NearlyFull() const {
  return inside_.requests >= kNearlyFull * limits_.requests ||
         static_cast<double>(inside_.prompt_tokens) >=
             kNearlyFull * static_cast<double>(limits_.prompt_tokens);
}

void Admission::NoteTime() {
  const absl::Duration now = clock_.SinceStart();
  if (Loaded()) loaded_time_ += now - last_change_;
  if (NearlyFull()) full_time_ += now - last_change_;
  last_change_ = now;
}

bool Admission::KnowsPace() const {
  const absl::Duration seen = completions_.Seen(full_time_);
  if (completions_.events() == 0) return false;
  return seen >= DecayingRate::kMemory ||
         (seen >= kShortestMeasure && completions_.events() >= kSamplesToTrust);
}

absl::Duration Admission::RetryAfter() {
  absl::MutexLock lock(&mutex_);
  NoteTime();  // a line that does not move is a pace, too
  if (!KnowsPace()) return limits_.first_retry_after;
  const absl::Duration now = clock_.SinceStart();
  const double pace = completions_.PerSecond(full_time_);
  if (pace <= 0) return kLongestRetry;  // too small for a double
  line_ = std::max(line_ - pace * absl::ToDoubleSeconds(now - line_at_), 0.0) + 1;
  line_at_ = now;
  // The line has an end: clients beyond it get the longest time.
  line_ = std::min(line_, pace * absl::ToDoubleSeconds(kLongestRetry));
  return std::clamp(absl::Seconds(line_ / pace), kShortestRetry, kLongestRetry);
}

Admission::Estimate Admission::EstimatedTimes(int64_t tokens, int64_t max_tokens) const {
  absl::MutexLock lock(&mutex_);
  if (!Loaded() || prompt_tokens_done_.events() < kSamplesToTrust) return {};
  const double pace = prompt_tokens_done_.PerSecond(loaded_time_);
  if (pace <= 0) return {};
  const absl::Duration first = absl::Seconds(static_cast<double>(waiting_tokens_ + tokens) / pace);
  return {first, first + answer_pace_.Expected(max_tokens)};
}

void Admission::AwaitEmpty() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* tickets) { return *tickets == 0; }, &tickets_));
}

}  // namespace baton::router
