// The part of Membership that answers requests: who may take one.
#include <algorithm>
#include <functional>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "router/membership.h"

namespace baton::router {
namespace {

constexpr absl::Duration kNoWorkerRetryAfter = absl::Seconds(1);
constexpr absl::Duration kShortestSloRetry = absl::Milliseconds(50);
constexpr absl::Duration kLongestSloRetry = absl::Seconds(60);
// What a worker has cached of a prompt that it was sent, it has told this long after its end.
constexpr absl::Duration kTellsWithin = absl::Seconds(2);
// A worker that tells of longer ones is not believed.
constexpr absl::Duration kLongestTransfer = absl::Minutes(1);
// Of an answer, until more is known of it.
constexpr double kAnswerTokens = 128;

// Keeps those that `keep`, if there are any.
template <class Keep>
void Prefer(std::vector<Candidate>* candidates, Keep keep) {
  if (absl::c_any_of(*candidates, keep)) {
    candidates->erase(std::remove_if(candidates->begin(), candidates->end(), std::not_fn(keep)),
                      candidates->end());
  }
}

double BlockBytes(const internal::v1::KvLayout& layout) {
  const int value_bytes = layout.dtype() == "float32" ? 4 : layout.dtype() == "int8" ? 1 : 2;
  return 2.0 * layout.layers() * layout.kv_heads() * layout.head_dim() * layout.block_tokens() *
         value_bytes;
}

}  // namespace

absl::StatusOr<Route> Membership::Choose(const RouteRequest& request) {
  // The long part, without the lock.
  std::vector<int> depths;
  index_.Match(request.keys, &depths);
  dispatched_.Match(request.keys, &depths);
  if (request.warm_prefill >= 0 && request.warm_prefill < static_cast<int>(depths.size())) {
    depths[request.warm_prefill] = static_cast<int>(request.keys.size());
  }
  Route route;
  absl::Duration told_by;
  bool will_be_cached;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Span<const Candidate> decode =
        Candidates(v1::WORKER_ROLE_DECODE, /*doubted=*/false, request, depths, &decode_);
    if (decode.empty()) return NoDecodeWorker();
    absl::Span<const Candidate> prefill =
        Candidates(v1::WORKER_ROLE_PREFILL, /*doubted=*/false, request, depths, &prefill_);
    if (prefill.empty() && request.avoid.empty() && health_.all_usable()) {
      // That one worker hangs is likely, that all do at a time is not.
      prefill = Candidates(v1::WORKER_ROLE_PREFILL, /*doubted=*/true, request, depths, &prefill_);
      if (prefill.size() < 2) prefill = {};
    }
    const RouteQuery query = QueryOf(request, decode[0].worker);
    const Pair pair = ChoosePair(query, prefill, decode);
    route.decode = Target(pair.decode.worker);
    if (pair.prefill) route.prefill = Target(pair.prefill->worker);
    // Before anything is noted of a pair that nobody will be sent to.
    const bool failed = absl::c_any_of(request.failed, [&route](const Route& f) {
      return f.prefill.incarnation() == route.prefill.incarnation() &&
             f.decode.incarnation() == route.decode.incarnation();
    });
    if (failed) return absl::UnavailableError("no other pair");
    BATON_RETURN_IF_ERROR(CheckSlo(request, prefill, decode, pair));
    const Candidate& computes = pair.computes();
    route.matched_blocks = computes.matched_blocks;
    route.decision = std::string(pair.decision);
    const absl::Duration finish = absl::Seconds(computes.queue_s + computes.service_s);
    if (computes.cost_known) route.predicted_ttft = finish;
    if (request.explain) route.why = Explain(query, route, pair, prefill, decode);
    if (!request.dispatch) return route;
    route.dispatch = NoteDispatch(query, pair);
    told_by = clock_.SinceStart() + finish + kTellsWithin;
    will_be_cached = pair.prefill && workers_[pair.prefill->worker].card->prefix_caching();
  }
  if (will_be_cached) dispatched_.Add(route.prefill.worker, request.keys, told_by);
  return route;
}

// Those who may take the request; of those to avoid only where there is nobody else. They are in
// *kept if some are left out.
absl::Span<const Candidate> Membership::Candidates(v1::WorkerRole role, bool doubted,
                                                   const RouteRequest& request,
                                                   absl::Span<const int> depths,
                                                   std::vector<Candidate>* kept) {
  FleetLoad::Query query;
  query.role = role;
  query.doubted = doubted;
  query.model_fingerprint = request.model_fingerprint;
  query.prompt_tokens = request.prompt_tokens;
  query.matched_blocks = depths;
  const absl::Span<const Candidate> all = fleet_.Collect(query, clock_.SinceStart());
  if (request.avoid.empty() && request.lost.empty() && health_.all_usable()) return all;
  kept->assign(all.begin(), all.end());
  const auto wanted = [this, &request](const Candidate& c) {
    mutex_.AssertHeld();
    return !absl::c_linear_search(request.avoid,
                                  Incarnation{c.worker, workers_[c.worker].card->epoch()});
  };
  const auto usable = [this](const Candidate& c) {
    mutex_.AssertHeld();
    return health_.WorkerUsable(c.worker);
  };
  const auto drop = [kept](const auto& keep) {
    kept->erase(std::remove_if(kept->begin(), kept->end(), std::not_fn(keep)), kept->end());
  };
  if (role == v1::WORKER_ROLE_DECODE) {
    drop([this, &request](const Candidate& c) {
      mutex_.AssertHeld();
      const Incarnation here = {c.worker, workers_[c.worker].card->epoch()};
      return absl::c_none_of(request.lost,
                             [&here](const Route& l) { return l.decode.incarnation() == here; });
    });
    Prefer(kept, wanted);
    Prefer(kept, usable);
  } else {
    if (request.avoided_prefill_may_do) {
      Prefer(kept, wanted);
    } else {
      drop(wanted);
    }
    drop(usable);
  }
  return *kept;
}

RouteQuery Membership::QueryOf(const RouteRequest& request, int decode_worker) const {
  const internal::v1::KvLayout& layout = workers_[decode_worker].card->kv_layout();
  RouteQuery query;
  query.now_s = absl::ToDoubleSeconds(clock_.SinceStart());
  query.prompt_tokens = request.prompt_tokens;
  query.block_tokens = layout.block_tokens();
  query.prompt_blocks = (request.prompt_tokens + query.block_tokens - 1) / query.block_tokens;
  query.keys = request.keys;
  const bool measured = transfer_bytes_.value() > 0;
  query.block_transfer_s =
      measured ? BlockBytes(layout) * transfer_seconds_.value() / transfer_bytes_.value()
               : BlockBytes(layout) / options_.kv_bytes_per_second;
  query.mean_answer_tokens = answer_tokens_.empty() ? kAnswerTokens : answer_tokens_.value();
  query.answer_tokens = query.mean_answer_tokens;
  if (request.max_answer_tokens > 0) {
    query.answer_tokens =
        std::min(query.answer_tokens, static_cast<double>(request.max_answer_tokens));
  }
  return query;
}

// Pairs that fail together are passed over: first another decode worker is asked for, then another
// prefill worker.
Membership::Pair Membership::ChoosePair(const RouteQuery& query,
                                        absl::Span<const Candidate> prefill,
                                        absl::Span<const Candidate> decode) {
  std::vector<Candidate> left, partners;
  while (!prefill.empty()) {
    RouteChoice choice = policy_.Choose(query, prefill, decode);
    if (choice.prefill < 0) {
      return {std::nullopt, decode[choice.decode], choice.decision, choice.pricing};
    }
    const Candidate chosen = prefill[choice.prefill];
    const auto usable = [this, &chosen](const Candidate& c) {
      mutex_.AssertHeld();
      return health_.PairUsable(chosen.worker, c.worker);
    };
    if (usable(decode[choice.decode])) {
      return {chosen, decode[choice.decode], choice.decision, choice.pricing};
    }
    partners.clear();
    absl::c_copy_if(decode, std::back_inserter(partners), usable);
    if (!partners.empty()) {
      const RouteChoice other = policy_.Choose(query, absl::MakeConstSpan(&chosen, 1), partners);
      const Candidate& partner = partners[other.decode];
      if (other.prefill < 0) return {std::nullopt, partner, other.decision};
      return {chosen, partner, choice.decision, choice.pricing};
    }
    if (left.empty()) left.assign(prefill.begin(), prefill.end());
    left.erase(left.begin() + choice.prefill);
    prefill = left;
  }
  const RouteChoice choice = policy_.Choose(query, {}, decode);
  return {std::nullopt, decode[choice.decode], choice.decision};
}

absl::Status Membership::CheckSlo(const RouteRequest& request, absl::Span<const Candidate> prefill,
                                  absl::Span<const Candidate> decode, const Pair& pair) const {
  if (options_.ttft_slo <= absl::ZeroDuration() || !request.may_refuse) return absl::OkStatus();
  const Candidate& computes = pair.computes();
  if (!computes.cost_known) return absl::OkStatus();
  double soonest = computes.queue_s + computes.service_s;
  for (const Candidate& c : prefill.empty() ? decode : prefill) {
    soonest = std::min(soonest, c.queue_s + c.service_s);
  }
  const absl::Duration excess = absl::Seconds(soonest) - options_.ttft_slo;
  if (excess <= absl::ZeroDuration()) return absl::OkStatus();
  // Those refused together do not come back together.
  const double share = static_cast<double>(options_.random() >> 11) * 0x1p-53;
  return WithRetryAfter(
      MakeError(absl::StatusCode::kResourceExhausted, "TTFT_SLO_UNREACHABLE",
                absl::StrCat("the first token is expected in ",
                             absl::ToInt64Milliseconds(absl::Seconds(soonest)),
                             " ms at the soonest, but promised within ",
                             absl::ToInt64Milliseconds(options_.ttft_slo), " ms")),
      std::clamp(excess * (1 + share), kShortestSloRetry, kLongestSloRetry));
}

// The number is that of whoever computes the prompt.
int64_t Membership::NoteDispatch(const RouteQuery& query, const Pair& pair) {
  const absl::Duration now = clock_.SinceStart();
  const Candidate& computes = pair.computes();
  const int64_t tokens = std::max<int64_t>(
      query.prompt_tokens - int64_t{computes.matched_blocks} * query.block_tokens, 1);
  const int received = std::max(0, query.prompt_blocks - pair.decode.matched_blocks);
  health_.OnChosen(pair.prefill ? pair.prefill->worker : kNoWorker, pair.decode.worker);
  if (!pair.prefill) {
    return fleet_.OnDispatch(pair.decode.worker, now,
                             {tokens, pair.decode.service_s, received, query.prompt_tokens});
  }
  policy_.OnSent(*pair.prefill);
  const int computed = std::max(0, query.prompt_blocks - pair.prefill->matched_blocks);
  fleet_.OnDispatch(pair.decode.worker, now, {1, 0, received, query.prompt_tokens});
  return fleet_.OnDispatch(pair.prefill->worker, now,
                           {tokens, pair.prefill->service_s, computed, 0});
}

void Membership::OnFirstToken(const Route& route) {
  absl::MutexLock lock(&mutex_);
  Done(route);
}

void Membership::Done(const Route& route) {
  const WorkerTarget& computed = route.prefill.worker == kNoWorker ? route.decode : route.prefill;
  fleet_.OnDone(computed.worker, route.dispatch, clock_.SinceStart());
}

void Membership::OnRouteFailed(const Route& route, Blame blame) {
  absl::MutexLock lock(&mutex_);
  Done(route);
  // What an earlier process at the address did is not held against this one.
  const auto current = [this](const WorkerTarget& target) {
    mutex_.AssertHeld();
    if (target.worker == kNoWorker) return true;
    const std::optional<internal::v1::WorkerCard>& card = workers_[target.worker].card;
    return card.has_value() && card->epoch() == target.epoch;
  };
  if (!current(route.prefill) || !current(route.decode)) return;
  if (blame == Blame::kPair) health_.OnPairFailed(route.prefill.worker, route.decode.worker);
  if (blame == Blame::kDecodeWorker) health_.OnWorkerFailed(route.decode.worker);
}

void Membership::OnRouteWorked(const Route& route, bool kv_moved) {
  absl::MutexLock lock(&mutex_);
  health_.OnPairWorked(kv_moved ? route.prefill.worker : kNoWorker, route.decode.worker);
}

void Membership::OnAnswered(int64_t generated_tokens, int64_t kv_bytes,
                            absl::Duration kv_transfer) {
  absl::MutexLock lock(&mutex_);
  answer_tokens_.Add(static_cast<double>(generated_tokens));
  if (kv_bytes <= 0) return;
  transfer_bytes_.Add(static_cast<double>(kv_bytes));
  transfer_seconds_.Add(
      absl::ToDoubleSeconds(std::clamp(kv_transfer, absl::ZeroDuration(), kLongestTransfer)));
}

bool Membership::MayLive(const WorkerTarget& target) const {
  absl::MutexLock lock(&mutex_);
  const Worker& w = workers_[target.worker];
  if (w.state == v1::WORKER_STATE_EXPIRED || w.state == v1::WORKER_STATE_REFUSED) return false;
  return !w.card || w.card->epoch() == target.epoch;
}

bool Membership::LooksDead(const WorkerTarget& target) const {
  if (target.worker == kNoWorker) return false;
  absl::MutexLock lock(&mutex_);
  const Worker& w = workers_[target.worker];
  // A stream that has just been opened says nothing yet: the process may be gone.
  if (!w.stream_open || !w.card_seen || w.card->epoch() != target.epoch) return true;
  return w.state == v1::WORKER_STATE_SUSPECT;
}

absl::Status Membership::NoDecodeWorker() const {
  std::map<absl::string_view, int> states;
  int listed = 0;
  for (const Worker& w : workers_) {
    if (w.role != v1::WORKER_ROLE_DECODE || !w.listed) continue;
    ++listed;
    ++states[w.state == v1::WORKER_STATE_READY ? "of a model that came since" : StateName(w.state)];
  }
  const std::string counts = absl::StrJoin(states, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
  return WithRetryAfter(
      MakeError(absl::StatusCode::kUnavailable, "NO_WORKER",
                absl::StrCat("no decode worker is ready (", listed, " listed: ", counts, ")")),
      kNoWorkerRetryAfter);
}

WorkerTarget Membership::Target(int worker) const {
  const Worker& w = workers_[worker];
  return {worker, w.address, w.card->worker_id(), w.card->epoch(), w.hold};
}

bool Membership::Ready() const {
  absl::MutexLock lock(&mutex_);
  bool prefill = false, prefill_listed = false, decode = false;
  for (const Worker& w : workers_) {
    if (!w.listed) continue;
    const bool ready = w.state == v1::WORKER_STATE_READY;
    if (w.role == v1::WORKER_ROLE_DECODE) {
      decode = decode || ready;
    } else {
      prefill_listed = true;
      prefill = prefill || ready;
    }
  }
  const bool starting = clock_.SinceStart() - started_ <= kExpireAfter;
  return decode && (prefill || !prefill_listed || !starting);
}

}  // namespace baton::router
