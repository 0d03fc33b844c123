// The part of GenerateCall that opens streams to workers, judges them, and goes on elsewhere.
//
// Before the first token another pair is invisible: the request is sent again as it was. After it,
// the tokens that the client has are sent behind the prompt, and the new worker goes on from there.
// Tokens depend on the request alone, the random numbers of a token on its position, so the client
// sees one text. Of n choices each is continued by a call of its own, as each has come another way;
// a search starts anew, and those of its results that the client has are not sent twice.
//
// What bounds it: a stream that was lost with its worker costs nothing, as there are no more of
// them than requests in flight, once for each death. Any other loss, and a refusal of what no
// worker had let in yet, takes from the retry budget. Three losses without a token between them end
// a request. A request that has lost a worker waits for another one: for --failover-wait-ms while
// none is ready, and for room on those that are until its own deadline, with pauses between its
// tries.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "router/request/generate_call.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

namespace decode_pb = ::baton::internal::v1;

// Before a full worker is asked again; doubled with each refusal, up to a bound.
constexpr absl::Duration kFullWorkerPause = absl::Milliseconds(200);
constexpr int kMaxPauseDoublings = 3;
// How long a worker that is asked again may take to say something: it does so every second.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);
// A request that no worker takes for so long keeps no new ones out any more: others may fit where
// it does not.
constexpr absl::Duration kLongestHold = absl::Seconds(30);

absl::Duration PauseAfter(int refusals) {
  return kFullWorkerPause * (1 << std::clamp(refusals - 1, 0, kMaxPauseDoublings));
}

void AddTimings(const decode_pb::DecodeTimings& more, decode_pb::DecodeTimings* sum) {
  sum->set_queue_ms(sum->queue_ms() + more.queue_ms());
  sum->set_prefill_ms(sum->prefill_ms() + more.prefill_ms());
  sum->set_kv_transfer_ms(sum->kv_transfer_ms() + more.kv_transfer_ms());
}

// Who may have died where a stream was lost.
std::vector<WorkerTarget> SuspectsOf(const Route& route, Blame blame) {
  std::vector<WorkerTarget> suspects = {route.decode};
  if (blame != Blame::kDecodeWorker && route.prefill.worker != kNoWorker) {
    suspects.push_back(route.prefill);
  }
  return suspects;
}

}  // namespace

absl::Status GenerateCall::Open(Attempt& attempt) {
  decode_pb::DecodeRequest request =
      attempt.whole ? answer_->Whole() : answer_->RestOf(attempt.choices.front());
  RouteRequest wanted;
  wanted.model_fingerprint = request.model_fingerprint();
  wanted.keys = prepared_.keys;
  wanted.prompt_tokens = request.tokens_size();
  wanted.max_answer_tokens = request.max_tokens();
  wanted.avoid = attempt.past.avoid;
  wanted.avoided_prefill_may_do = attempt.past.refusals > 0;
  wanted.warm_prefill = attempt.past.warm_prefill;
  wanted.failed = attempt.past.failed;
  wanted.lost = attempt.past.lost;
  wanted.explain = true;
  wanted.may_refuse = attempt.past.tries == 0;
  absl::StatusOr<Route> route = parts_.membership.Choose(wanted);
  if (!route.ok()) return route.status();
  attempt.route = *std::move(route);
  attempt.sent_at = parts_.clock.SinceStart();
  attempt.route.why->request_id = request_id_;
  attempt.route.why->time = parts_.clock.Now();
  attempt.decision = parts_.decisions.Add(std::move(attempt.route.why));
  parts_.metrics.Routed(attempt.route.decision, parts_.membership.policy_name());
  BATON_LOG(Debug) << "request " << request_id_ << ": " << wanted.prompt_tokens << " tokens to "
                   << attempt.route.prefill.address << " (" << attempt.route.matched_blocks
                   << " blocks cached) and " << attempt.route.decode.address;
  request.set_continuation(MayWait(attempt.past));
  request.set_decode_epoch(attempt.route.decode.epoch);
  if (attempt.route.prefill.worker != kNoWorker) {
    request.mutable_prefill()->set_address(attempt.route.prefill.address);
    request.mutable_prefill()->set_worker_id(attempt.route.prefill.worker_id);
    request.mutable_prefill()->set_epoch(attempt.route.prefill.epoch);
  }
  attempt.cursor = attempt.whole ? answer_->AtStart() : answer_->AtEnd();
  const int stream = next_stream_++;
  const int worker = attempt.route.decode.worker;
  for (const WorkerTarget* target : {&attempt.route.prefill, &attempt.route.decode}) {
    // A request that waits for room may ask a worker often.
    if (!absl::c_linear_search(holds_, target->hold)) holds_.push_back(target->hold);
  }
  attempt.handle =
      parts_.network.Open(worker, std::move(request), deadline_, shared_from_this(), stream);
  attempts_.emplace(stream, std::move(attempt));
  return absl::OkStatus();
}

// A search is as many sequences as it has beams, however many of them it returns.
int GenerateCall::Sequences(const Attempt& attempt) const {
  if (!attempt.whole) return 1;
  return std::max(answer_->choice_count(), prepared_.decode.beam_width());
}

bool GenerateCall::MayWait(const Past& past) const {
  return first_token_at_.has_value() || past.lost_worker;
}

// A retry that is paid for, or free.
absl::Status GenerateCall::OpenAgain(Attempt& attempt) {
  const std::string reason = attempt.past.reason;
  if (absl::Status opened = Open(attempt); !opened.ok()) return opened;
  if (first_token_at_) {
    parts_.metrics.RequestFailedOver(reason);
  } else {
    parts_.metrics.RequestRetried(reason);
  }
  return absl::OkStatus();
}

void GenerateCall::OnStreamEnd(int stream, const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  const auto found = attempts_.find(stream);
  // Given up or answered: what the worker says of it now is of no interest.
  if (sink_ == nullptr || found == attempts_.end()) return;
  found->second.handle = nullptr;
  const Route& route = found->second.route;
  BATON_LOG(Warning) << "request " << request_id_ << " failed on decode worker "
                     << route.decode.address << " with prefill worker "
                     << (route.prefill.worker == kNoWorker ? "(none)" : route.prefill.address)
                     << " after " << usage_.generated_tokens()
                     << " tokens: " << (status.ok() ? "no finish" : status.error_message())
                     << " (code " << status.error_code() << ")";
  Lose(stream, FromWorker(status));
}

void GenerateCall::Lose(int stream, const absl::Status& error) {
  Attempt attempt = std::move(attempts_.at(stream));
  attempts_.erase(stream);
  if (attempt.handle != nullptr) attempt.handle->Cancel();
  const Blame blame = BlameFor(error);
  parts_.membership.OnRouteFailed(attempt.route, blame);
  if (!AnotherPairMayDo(error, MayWait(attempt.past))) return Fail(error);
  std::vector<int> rest;
  for (int choice : attempt.choices) {
    if (answer_->finished(choice)) continue;
    if (auto end = answer_->EndIfComplete(choice)) {
      Send(*std::move(end), attempt, /*end_told=*/false);
      if (sink_ == nullptr) return;
    } else {
      rest.push_back(choice);
    }
  }
  if (rest.empty()) return;
  Past past = std::move(attempt.past);
  past.continued = past.continued || attempt.token_messages > 0;
  past.reason = ErrorReason(error);
  AddTimings(attempt.timings, &past.timings);
  past.avoid.push_back(attempt.route.decode.incarnation());
  past.failed.push_back(attempt.route);
  std::vector<WorkerTarget> suspects;
  bool unheard = false;
  if (IsRefusal(error)) {
    // A full worker may have room a moment later. A request that workers have had waits for that;
    // for another one the first refusal stands, after one look elsewhere.
    if (++past.refusals > 1 && !MayWait(past)) return Fail(error);
  } else {
    suspects = SuspectsOf(attempt.route, blame);
    past.lost_at = parts_.clock.SinceStart();
    if (++past.tries >= kMaxTries) return Fail(error);
    // Two workers that cannot do it together have lost nothing.
    unheard = blame == Blame::kDecodeWorker && !attempt.heard && past.tries > 1;
    past.lost_worker = past.lost_worker || blame != Blame::kPair || AnyLooksDead(suspects);
  }
  if (blame == Blame::kDecodeWorker || past.reason == "WORKER_EXPIRED") {
    // The prefill worker did its part, and has the prompt: it is the best to ask again.
    past.lost.push_back(attempt.route);
    past.warm_prefill = attempt.token_messages > 0 ? attempt.route.prefill.worker : kNoWorker;
  } else if (attempt.worked) {
    past.warm_prefill = attempt.route.prefill.worker;  // the decode worker drains, say
  } else if (attempt.route.prefill.worker != kNoWorker) {
    past.avoid.push_back(attempt.route.prefill.incarnation());
  }
  GoOn(std::move(rest), std::move(past), error, std::move(suspects), unheard);
}

bool GenerateCall::AnyLooksDead(const std::vector<WorkerTarget>& suspects) const {
  return absl::c_any_of(
      suspects, [this](const WorkerTarget& target) { return parts_.membership.LooksDead(target); });
}

// The budget has paid for a stream that may have been lost by a death.
void GenerateCall::NoteCharge(int sequences, const std::vector<WorkerTarget>& suspects) {
  const absl::Duration now = parts_.clock.SinceStart();
  std::vector<Incarnation> processes;
  for (const WorkerTarget& target : suspects) processes.push_back(target.incarnation());
  parts_.retry_budget.Charged(sequences, processes, now);
  for (const WorkerTarget& target : suspects) {
    // The proof may have come before the note that it is the proof of.
    if (!parts_.membership.LooksDead(target)) continue;
    parts_.metrics.OrphanedByDeath(parts_.retry_budget.OnDeath(target.incarnation(), now));
  }
}

void GenerateCall::HoldRoom(const absl::Status& refusal, absl::Duration pause,
                            Attempt* attempt) const {
  // Of the others, a tenant's limit and a deadline that cannot be met, new requests are no cause.
  if (ErrorReason(refusal) != "QUEUE_FULL") return;
  const absl::Duration until = std::min(parts_.clock.SinceStart() + pause + kAnswerTime,
                                        attempt->past.lost_at + kLongestHold);
  attempt->hold.emplace(&parts_.continuations, until);
}

void GenerateCall::GoOn(std::vector<int> choices, Past past, const absl::Status& error,
                        std::vector<WorkerTarget> suspects, bool unheard) {
  std::vector<Attempt> next;
  if (!first_token_at_ || answer_->is_search()) {
    next.emplace_back().choices = std::move(choices);
  } else {
    for (int choice : choices) {
      next.emplace_back().choices = {choice};
      next.back().whole = false;
    }
  }
  int sequences = 0;
  for (const Attempt& attempt : next) sequences += Sequences(attempt);
  const bool refused = IsRefusal(error);
  const bool may_wait = MayWait(past);
  // Those that wait for room are paced, which is bound enough.
  const bool owes = refused ? !may_wait : !AnyLooksDead(suspects);
  if (!refused && !owes) parts_.metrics.OrphanedByDeath(sequences);
  if (!owes) suspects.clear();
  // All or nothing: what some of the choices took for an answer that fails would be wasted.
  const bool paid = !owes || parts_.retry_budget.TryTake(sequences);
  if (!paid && refused) {
    parts_.metrics.RetryBudgetExhausted();
    return Fail(error);
  }
  // Of full workers, one look elsewhere is enough to see that the others are full, too.
  const bool at_once = refused ? past.refusals == 1 : !unheard;
  const absl::Duration pause = refused   ? PauseAfter(past.refusals)
                               : unheard ? kSameWorkerPause
                                         : absl::ZeroDuration();
  const absl::Duration now = parts_.clock.SinceStart();
  const bool survivor = parts_.membership.AnyDecodeWorkerReady();
  for (Attempt& attempt : next) {
    attempt.past = past;
    if (refused && may_wait) HoldRoom(error, pause, &attempt);
    const int count = Sequences(attempt);
    if (paid && at_once && OpenAgain(attempt).ok()) {
      if (owes && !refused) NoteCharge(count, suspects);
      continue;
    }
    if (paid && owes) parts_.retry_budget.GiveBack(count);
    // Nothing has been sent, and no worker was lost: the client can try again itself, and knows
    // best whether to. Then there is but one attempt.
    if (paid && !may_wait) return Fail(error);
    Waiting waiting{std::move(attempt),
                    error,
                    now + pause,
                    suspects,
                    std::nullopt,
                    std::nullopt,
                    ContinuationLine::Place(&parts_.continuations)};
    if (!paid) waiting.unpaid_since = now;
    if (!survivor) waiting.alone_since = now;
    waiting_.push_back(std::move(waiting));
  }
}

void GenerateCall::OnTick() {
  absl::MutexLock lock(&mutex_);
  // A client without a deadline that stops reading would hold its place for ever.
  if (answered_ != nullptr && parts_.clock.Now() >= deadline_) {
    std::exchange(answered_, nullptr)->Abort();
  }
  const absl::Duration now = parts_.clock.SinceStart();
  const absl::Duration bound = absl::Milliseconds(parts_.options.stall_timeout_ms);
  std::vector<std::pair<int, absl::Status>> lost;
  for (const auto& [stream, attempt] : attempts_) {
    const bool stalled = attempt.heard && now - attempt.last_message > bound;
    if (!stalled && parts_.membership.MayLive(attempt.route.decode)) continue;
    lost.emplace_back(stream, LostWorker(stalled ? "WORKER_STALLED" : "WORKER_EXPIRED"));
  }
  for (const auto& [stream, error] : lost) {
    if (sink_ == nullptr) return;
    BATON_LOG(Warning) << "request " << request_id_ << " leaves decode worker "
                       << attempts_.at(stream).route.decode.address << " after "
                       << usage_.generated_tokens() << " tokens: " << ErrorReason(error);
    Lose(stream, error);
  }
  if (sink_ != nullptr && !waiting_.empty()) FindWorkers();
  if (sink_ != nullptr) SayAlive();
}

}  // namespace baton::router
