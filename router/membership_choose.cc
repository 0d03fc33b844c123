// The part of Membership that answers requests: who may take one.
#include <algorithm>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "router/membership.h"

namespace baton::router {
namespace {

constexpr absl::Duration kNoWorkerRetryAfter = absl::Seconds(1);

// Those that `keep`, if there are any.
template <class Keep>
std::vector<Candidate> Prefer(const std::vector<Candidate>& candidates, Keep keep) {
  std::vector<Candidate> kept;
  absl::c_copy_if(candidates, std::back_inserter(kept), keep);
  return kept.empty() ? candidates : kept;
}

}  // namespace

absl::StatusOr<Route> Membership::Choose(const RouteRequest& request) {
  absl::MutexLock lock(&mutex_);
  std::vector<Candidate> decode = Candidates(v1::WORKER_ROLE_DECODE, request);
  if (decode.empty()) return NoDecodeWorker();
  decode = Prefer(decode, [this](const Candidate& c) {
    mutex_.AssertHeld();
    return health_.WorkerUsable(c.worker);
  });
  std::vector<Candidate> prefill = Candidates(v1::WORKER_ROLE_PREFILL, request);
  const RouteChoice choice = ChoosePair(request, prefill, &decode);
  const Candidate& d = decode[choice.decode];
  Route route;
  route.decode = Target(d.worker);
  route.decision = std::string(choice.decision);
  if (choice.prefill != kNoWorker) {
    route.prefill = Target(choice.prefill);
    route.matched_blocks = index_.MatchDepth(choice.prefill, request.keys);
  } else {
    route.matched_blocks = d.matched_blocks;
  }
  if (request.explain) route.why = Explain(request, route, choice, prefill, decode);
  if (request.dispatch) NoteDispatch(request, route);
  return route;
}

void Membership::NoteDispatch(const RouteRequest& request, const Route& route) {
  const absl::Duration now = clock_.SinceStart();
  const int block_tokens = workers_[route.decode.worker].card->kv_layout().block_tokens();
  const int64_t to_compute =
      std::max<int64_t>(request.prompt_tokens - int64_t{route.matched_blocks} * block_tokens, 1);
  if (route.prefill.worker != kNoWorker) {
    workers_[route.prefill.worker].dispatched.push_back({now, to_compute});
    workers_[route.decode.worker].dispatched.push_back({now, 1});
  } else {
    workers_[route.decode.worker].dispatched.push_back({now, to_compute});
  }
  health_.OnChosen(route.prefill.worker, route.decode.worker);
}

std::shared_ptr<Decision> Membership::Explain(const RouteRequest& request, const Route& route,
                                              const RouteChoice& choice,
                                              absl::Span<const Candidate> prefill,
                                              absl::Span<const Candidate> decode) const {
  const int block_tokens = workers_[route.decode.worker].card->kv_layout().block_tokens();
  auto why = std::make_shared<Decision>();
  why->prompt_tokens = request.prompt_tokens;
  why->prefill = route.prefill.worker;
  why->decode = route.decode.worker;
  why->prefill_address = route.prefill.address;
  why->decode_address = route.decode.address;
  why->label = choice.decision;
  why->policy = policy_.name();
  why->prefill_candidates = static_cast<int>(prefill.size());
  why->decode_candidates = static_cast<int>(decode.size());
  why->predicted_cached_tokens =
      std::min(request.prompt_tokens, route.matched_blocks * block_tokens);
  const auto tell = [&](absl::Span<const Candidate> candidates, int chosen) {
    mutex_.AssertHeld();
    int told = 0;
    for (const Candidate& c : candidates) {
      // The last place is for the chosen one, should it come later.
      const int room = kMaxTellableCandidates - (chosen == kNoWorker || c.worker == chosen ? 0 : 1);
      if (c.worker == chosen) chosen = kNoWorker;
      if (told >= room) continue;
      ++told;
      DecisionCandidate& telling = why->candidates.emplace_back();
      telling.worker = c.worker;
      telling.role = workers_[c.worker].role;
      telling.address = workers_[c.worker].address;
      telling.cached_tokens = std::min(request.prompt_tokens, c.matched_blocks * block_tokens);
      telling.cost = static_cast<double>(c.queued_tokens);
      if (!health_.WorkerUsable(c.worker)) telling.excluded = "failed lately";
    }
  };
  tell(prefill, route.prefill.worker);
  tell(decode, route.decode.worker);
  return why;
}

// In the choice returned, `prefill` is the worker itself, and `decode` an index into *decode, which
// may have been narrowed.
RouteChoice Membership::ChoosePair(const RouteRequest& request, std::vector<Candidate> prefill,
                                   std::vector<Candidate>* decode) {
  RouteQuery query;
  query.prompt_tokens = request.prompt_tokens;
  const int block_tokens = workers_[(*decode)[0].worker].card->kv_layout().block_tokens();
  query.prompt_blocks = (request.prompt_tokens + block_tokens - 1) / block_tokens;
  prefill.erase(std::remove_if(prefill.begin(), prefill.end(),
                               [this](const Candidate& c) {
                                 mutex_.AssertHeld();
                                 return !health_.WorkerUsable(c.worker);
                               }),
                prefill.end());
  while (!prefill.empty()) {
    RouteChoice choice = policy_.Choose(query, prefill, *decode);
    const Candidate chosen = prefill[choice.prefill];
    const auto usable = [this, &chosen](const Candidate& c) {
      mutex_.AssertHeld();
      return health_.PairUsable(chosen.worker, c.worker);
    };
    if (!usable((*decode)[choice.decode])) {
      std::vector<Candidate> partners;
      absl::c_copy_if(*decode, std::back_inserter(partners), usable);
      if (partners.empty()) {
        prefill.erase(prefill.begin() + choice.prefill);
        continue;
      }
      *decode = std::move(partners);
      choice = policy_.Choose(query, absl::MakeConstSpan(&chosen, 1), *decode);
    }
    choice.prefill = chosen.worker;
    return choice;
  }
  return policy_.Choose(query, {}, *decode);
}

void Membership::OnRouteFailed(const Route& route, Blame blame) {
  absl::MutexLock lock(&mutex_);
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

void Membership::OnRouteWorked(const Route& route) {
  absl::MutexLock lock(&mutex_);
  health_.OnPairWorked(route.prefill.worker, route.decode.worker);
}

bool Membership::MayLive(const WorkerTarget& target) const {
  absl::MutexLock lock(&mutex_);
  const Worker& w = workers_[target.worker];
  if (w.state == v1::WORKER_STATE_EXPIRED || w.state == v1::WORKER_STATE_REFUSED) return false;
  return !w.card || w.card->epoch() == target.epoch;
}

std::vector<Candidate> Membership::Candidates(v1::WorkerRole role,
                                              const RouteRequest& request) const {
  std::vector<Candidate> preferred, avoided;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    const Worker& w = workers_[i];
    if (w.role != role || w.state != v1::WORKER_STATE_READY) continue;
    if (w.card->model_fingerprint() != request.model_fingerprint) continue;
    Candidate candidate;
    candidate.worker = i;
    candidate.matched_blocks = i == request.warm_prefill ? static_cast<int>(request.keys.size())
                                                         : index_.MatchDepth(i, request.keys);
    candidate.running = w.load.running();
    candidate.queued = w.load.queued() + static_cast<int>(w.dispatched.size());
    candidate.queued_tokens = w.load.queued_tokens();
    for (const Dispatch& dispatch : w.dispatched) candidate.queued_tokens += dispatch.tokens;
    candidate.free_blocks = w.load.free_blocks();
    const bool avoid = absl::c_linear_search(request.avoid, i);
    (avoid ? avoided : preferred).push_back(candidate);
  }
  const bool avoided_may_do = role == v1::WORKER_ROLE_DECODE || request.avoided_prefill_may_do;
  return preferred.empty() && avoided_may_do ? avoided : preferred;
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
