#include "router/routing/route_planner.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/brief_lock.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "router/fleet/capabilities.h"
#include "router/fleet/card_sizes.h"

namespace baton::router {
namespace {

// How often the books are tidied: this takes a pass over all workers.
constexpr absl::Duration kUpkeep = absl::Milliseconds(100);
constexpr absl::Duration kShortestSloRetry = absl::Milliseconds(50);
constexpr absl::Duration kLongestSloRetry = absl::Seconds(60);
// After a prompt's end, its worker reports within this time what it has cached of it.
constexpr absl::Duration kReportsWithin = absl::Seconds(2);
// Workers report at least every second. One that was silent for longer may have been lost, too,
// unless all were silent for about as long.
constexpr absl::Duration kUsualSilence = absl::Milliseconds(1250);
constexpr absl::Duration kAboutAsLong = absl::Milliseconds(250);
// The expected length of an answer, until some have been seen.
constexpr double kAnswerTokens = 128;

// Keeps the candidates that were heard of lately. `silences`: by worker; empty: keeps all.
void PreferHeard(absl::Span<const absl::Duration> silences, Candidates* found) {
  const auto silence = [&](int i) {
    const auto worker = static_cast<size_t>(found->worker(i));
    return worker < silences.size() ? silences[worker] : absl::InfiniteDuration();
  };
  if (silences.empty() || found->empty()) return;
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < found->size(); ++i) least = std::min(least, silence(i));
  const absl::Duration bound = std::max(kUsualSilence, least + kAboutAsLong);
  found->KeepIf([&](int i) { return silence(i) <= bound; });
}

}  // namespace

RoutePlanner::RoutePlanner(Roster& roster, PrefixIndex& index, Policy& policy, const Clock& clock,
                           const RouteOptions& options)
    : roster_(roster),
      clock_(clock),
      options_(options),
      index_(index),
      policy_(policy),
      health_(clock),
      demand_(options.demand) {
  roster_.SetObserver(this);
}

void RoutePlanner::OnWorkerCount(int count) {
  dispatched_.Grow(count);
  absl::MutexLock lock(&mutex_);
  workers_.resize(count);
  fleet_.Grow(count);
  links_.Grow(count);
}

void RoutePlanner::OnReady(const WorkerTarget& target, const internal::v1::WorkerCard& card) {
  absl::MutexLock lock(&mutex_);
  workers_[target.worker] = {target,
                             card.role(),
                             card.kv_layout().block_tokens(),
                             KvSizesOf(card),
                             card.kv_layout().layers(),
                             card.prefix_caching(),
                             Can(card, v1::WORKER_CAPABILITY_SCORE),
                             pools_.Add(card.role(), card.pool()),
                             /*tier_load_s=*/0};
  // All workers have one model.
  recurrent_.store(card.block_shape().recurrent(), std::memory_order_relaxed);
  if (card.kv_tier_segment_tokens() > 0) {
    tier_block_tokens_ = card.kv_layout().block_tokens();
    tier_segment_tokens_ = card.kv_tier_segment_tokens();
  }
  const bool lends =
      card.role() == v1::WORKER_ROLE_DECODE && Can(card, v1::WORKER_CAPABILITY_COMPUTE);
  fleet_.OnReady(target.worker,
                 {card.role(), card.model_fingerprint(), kv::RootPrefixKey(0, target.address, ""),
                  card.total_blocks(), card.kv_layout().block_tokens(), card.max_num_seqs(),
                  card.device(), lends, KvSizesOf(card).shape.pages()});
  links_.Joins(target.worker, target.worker_id, target.epoch);
}

void RoutePlanner::OnSuspect(int worker) {
  absl::MutexLock lock(&mutex_);
  fleet_.OnSuspect(worker);
}

void RoutePlanner::OnUnavailable(int worker) {
  absl::MutexLock lock(&mutex_);
  fleet_.OnUnavailable(worker);
  workers_[worker].target.hold = nullptr;
}

void RoutePlanner::OnForgotten(int worker) {
  dispatched_.DropWorker(worker);
  absl::MutexLock lock(&mutex_);
  fleet_.Forget(worker);
  links_.Forget(worker);
  health_.Forget(worker);
  workers_[worker] = Worker();
}

void RoutePlanner::OnLoad(int worker, const internal::v1::LoadReport& load, absl::Duration at) {
  absl::MutexLock lock(&mutex_);
  fleet_.OnReport(worker, load, at);
  workers_[worker].tier_load_s =
      static_cast<double>(std::max<int64_t>(load.kv_tier_load_us(), 0)) * 1e-6;
  if (load.links_size() > 0) links_.OnReport(worker, load, absl::ToDoubleSeconds(at));
}

void RoutePlanner::OnTick(absl::Duration now) {
  {
    absl::MutexLock lock(&mutex_);
    if (now < next_upkeep_) return;
    next_upkeep_ = now + kUpkeep;
    fleet_.Tick(now);
    links_.Tick(absl::ToDoubleSeconds(now));
  }
  // Without the lock, so that decisions do not wait.
  dispatched_.Expire(now);
  for (int i = 0; i < KeyTable::kSegments / 64 && !index_.swept(); ++i) index_.Sweep(1);
}

absl::StatusOr<Route> RoutePlanner::Choose(const RouteRequest& request) {
  if (request.workers != RouteRequest::Workers::kPrefillIfAny) return ChooseOf(request);
  RouteRequest fixed = request;
  fixed.workers = RouteRequest::Workers::kPrefill;
  absl::StatusOr<Route> route = ChooseOf(fixed);
  if (!absl::IsUnavailable(route.status())) return route;
  fixed.workers = RouteRequest::Workers::kPair;
  return ChooseOf(fixed);
}

void RoutePlanner::Match(const RouteRequest& request, Matched* found) const {
  Matched& matched = *found;
  matched.depths.clear();
  matched.ends.clear();
  matched.silences.clear();
  if (request.after_loss) matched.silences = roster_.Silences();
  const absl::Span<const kv::PrefixKey> keys = request.matchable_keys();
  index_.Match(keys, &matched.depths, /*likely=*/{}, &matched.ends);
  if (recurrent_.load(std::memory_order_relaxed)) {
    index_.LimitToSnapshots(keys, &matched.depths);
  }
  if (options_.kv_fetch) matched.reported = matched.depths;
  matched.in_tiers = MatchTiers(request);
  dispatched_.Match(keys, &matched.depths, /*likely=*/matched.ends);
  if (request.warm_worker >= 0 && request.warm_worker < static_cast<int>(matched.depths.size())) {
    matched.depths[request.warm_worker] = static_cast<int>(keys.size());
  }
}

absl::StatusOr<Route> RoutePlanner::ChooseOf(const RouteRequest& request) {
  thread_local Matched matched;  // for its memory
  Match(request, &matched);
  absl::StatusOr<Chosen> chosen;
  {
    BriefReaderLock lock(&mutex_);
    chosen = Decide(request, matched);
  }
  BATON_RETURN_IF_ERROR(chosen.status());
  if (chosen->no_decode_worker) return NoDecodeWorker(request.pool);
  Route route = std::move(chosen->route);
  if (!request.dispatch) return route;
  const Candidate& computes = chosen->pair.computes();
  const absl::Duration finish = absl::Seconds(computes.wait_s() + computes.computing_s());
  bool will_be_cached = false;
  {
    BriefLock lock(&mutex_);
    CountDispatch(chosen->query, chosen->pair, &route);
    CountDemand(chosen->query, chosen->pair, route);
    will_be_cached = workers_[computes.worker].prefix_caching;
  }
  if (will_be_cached) {
    dispatched_.Add(computes.worker, request.keys, clock_.SinceStart() + finish + kReportsWithin);
  }
  return route;
}

absl::StatusOr<RoutePlanner::Chosen> RoutePlanner::Decide(const RouteRequest& request,
                                                          const Matched& matched) const {
  const bool alone = request.alone();
  const absl::Duration now = clock_.SinceStart();
  Chosen chosen;
  thread_local Candidates answering, prefill;  // for their memory, as below
  if (alone) {
    answering = Candidates();
  } else {
    Collect(v1::WORKER_ROLE_DECODE, /*suspect=*/false, request, matched.depths, now, &answering);
    PreferHeard(matched.silences, &answering);
    if (answering.empty()) {
      chosen.no_decode_worker = true;
      return chosen;
    }
  }
  if (alone) {
    BATON_RETURN_IF_ERROR(CollectAlone(request, matched.depths, now, &prefill));
  } else {
    CollectPrefill(request, matched.depths, now, &prefill);
  }
  PreferHeard(matched.silences, &prefill);
  const RouteQuery& query = chosen.query =
      QueryOf(request, alone ? prefill.worker(0) : answering.worker(0), prefill.size(), now);
  Held holder;
  // What is scored is neither loaded nor fetched.
  if (request.workers != RouteRequest::Workers::kScore) {
    if (options_.kv_fetch) holder = HolderOf(prefill, answering, matched.reported);
    for (Candidates* computing : {&prefill, &answering}) {
      PriceLoads(query, matched.in_tiers, computing);
      PriceFetches(query, holder, computing);
    }
  }
  thread_local std::vector<Candidate> decode;
  answering.CopyTo(&decode);
  // A request that has failed once is not lent: its next way should be another one.
  const bool again = !request.failed.empty() || !request.avoid.empty() || !request.lost.empty();
  for (Candidate& c : decode) c.lends = c.lends && !again;
  const Pair& pair = chosen.pair =
      alone ? ChooseAlone(query, prefill) : ChoosePair(query, prefill, decode);
  Route& route = chosen.route = RouteTo(pair);
  const bool failed = absl::c_any_of(request.failed, [&route](const Route& f) {
    return f.computes.incarnation() == route.computes.incarnation() &&
           f.answers.incarnation() == route.answers.incarnation();
  });
  if (failed) return absl::UnavailableError("no other pair");
  BATON_RETURN_IF_ERROR(CheckSlo(request, prefill, decode, pair));
  const Candidate& computes = pair.computes();
  route.matched_blocks = computes.matched_blocks;
  route.decision = std::string(pair.decision);
  route.spilled = SpilledOf(request, route);
  NameHolder(query, holder, pair, &route);
  if (computes.cost_known) {
    route.predicted_ttft = absl::Seconds(computes.wait_s() + computes.computing_s());
  }
  if (request.explain) {
    route.why = Explain(query, route, pair, prefill, decode);
    route.why->pool = request.pool;
    route.why->kv_holder_address = route.kv_holder.address;
    route.why->kv_holder_tokens = route.kv_holder_tokens;
  }
  return chosen;
}

void RoutePlanner::CollectPrefill(const RouteRequest& request, absl::Span<const int> depths,
                                  absl::Duration now, Candidates* found) const {
  Collect(v1::WORKER_ROLE_PREFILL, /*suspect=*/false, request, depths, now, found);
  if (!found->empty() || !request.avoid.empty() || !health_.all_usable()) return;
  // One worker may hang; that all hang at once is unlikely.
  Collect(v1::WORKER_ROLE_PREFILL, /*suspect=*/true, request, depths, now, found);
  if (found->size() < 2) *found = Candidates();
}

Route RoutePlanner::RouteTo(const Pair& pair) const {
  Route route;
  route.computes = workers_[pair.computes().worker].target;
  route.answers = workers_[pair.answers().worker].target;
  return route;
}

// The workers that may take the request; those to avoid only where there is no other.
void RoutePlanner::Collect(v1::WorkerRole role, bool suspect, const RouteRequest& request,
                           absl::Span<const int> depths, absl::Duration now,
                           Candidates* found) const {
  FleetLoad::Query query;
  query.role = role;
  query.suspect = suspect;
  query.model_fingerprint = request.model_fingerprint;
  query.prompt_tokens = request.prompt_tokens;
  query.matched_blocks = depths;
  fleet_.Collect(query, now, found);
  const bool one_pool = request.pinned() || (request.pool.empty() && pools_.only_none());
  if (one_pool && request.avoid.empty() && request.lost.empty() && health_.all_usable()) return;
  if (!one_pool) KeepPool(role, request, found);
  const auto wanted = [this, &request, found](int i) {
    mutex_.AssertReaderHeld();
    return !absl::c_linear_search(request.avoid, ProcessAt(found->worker(i)));
  };
  const auto usable = [this, found](int i) {
    mutex_.AssertReaderHeld();
    return health_.WorkerUsable(found->worker(i));
  };
  if (role == v1::WORKER_ROLE_DECODE && !request.alone()) {
    found->KeepIf([this, &request, found](int i) {
      mutex_.AssertReaderHeld();
      const Incarnation here = ProcessAt(found->worker(i));
      return absl::c_none_of(request.lost,
                             [&here](const Route& l) { return l.answers.incarnation() == here; });
    });
    found->Prefer(wanted);
    found->Prefer(usable);
  } else {
    if (request.avoided_prefill_may_do) {
      found->Prefer(wanted);
    } else {
      found->KeepIf(wanted);
    }
    found->KeepIf(usable);
  }
}

RouteQuery RoutePlanner::QueryOf(const RouteRequest& request, int worker_of_model,
                                 int prefill_workers, absl::Duration now) const {
  const Worker& worker = workers_[worker_of_model];
  RouteQuery query;
  query.now_s = absl::ToDoubleSeconds(now);
  query.prompt_tokens = request.prompt_tokens;
  query.block_tokens = worker.block_tokens;
  query.prompt_blocks = (request.prompt_tokens + query.block_tokens - 1) / query.block_tokens;
  query.keys = request.keys;
  query.prefill_workers = prefill_workers;
  const bool measured = transfer_bytes_.value() > 0;
  query.block_transfer_s =
      measured ? worker.kv.block_bytes * transfer_seconds_.value() / transfer_bytes_.value()
               : worker.kv.block_bytes / options_.kv_bytes_per_second;
  if (links_.any()) query.links = &links_;
  query.kv = worker.kv;
  query.layer_share = worker.layers > 0 ? 1.0 / worker.layers : 0;
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
RoutePlanner::Pair RoutePlanner::ChoosePair(const RouteQuery& query, const Candidates& prefill,
                                            absl::Span<const Candidate> decode) const {
  Candidates rest;
  const Candidates* left = &prefill;
  while (!left->empty()) {
    const RouteChoice choice = policy_.Choose(query, *left, decode);
    if (choice.lender >= 0) {
      const Candidate& lender = decode[choice.lender];
      const Candidate& answers = decode[choice.decode];
      if (health_.PairUsable(lender.worker, answers.worker)) {
        Pair pair = {lender, answers, choice.decision};
        pair.lent = true;
        return pair;
      }
      std::vector<Candidate> without(decode.begin(), decode.end());
      without[choice.lender].lends = false;
      return ChoosePair(query, prefill, without);
    }
    if (choice.prefill < 0) {
      return {std::nullopt, decode[choice.decode], choice.decision, choice.pricing};
    }
    const Candidate chosen = (*left)[choice.prefill];
    const auto usable = [this, &chosen](const Candidate& c) {
      mutex_.AssertReaderHeld();
      return health_.PairUsable(chosen.worker, c.worker);
    };
    if (usable(decode[choice.decode])) {
      Pair pair = {chosen, decode[choice.decode], choice.decision, choice.pricing, choice.hidden_s};
      if (left == &prefill) {
        pair.prefill_costs = choice.prefill_costs;
        pair.moved_costs = choice.moved_costs;
      }
      pair.decode_costs = choice.decode_costs;
      return pair;
    }
    std::vector<Candidate> partners;
    absl::c_copy_if(decode, std::back_inserter(partners), usable);
    for (Candidate& partner : partners) partner.lends = false;
    if (!partners.empty()) {
      const RouteChoice other = policy_.Choose(query, {chosen}, partners);
      const Candidate& partner = partners[other.decode];
      if (other.prefill < 0) return {std::nullopt, partner, other.decision};
      return {chosen, partner, choice.decision, choice.pricing, choice.hidden_s};
    }
    if (left == &prefill) rest = prefill, left = &rest;
    rest.KeepIf([&choice](int i) { return i != choice.prefill; });
  }
  const RouteChoice choice = policy_.Choose(query, {}, decode);
  return {std::nullopt, decode[choice.decode], choice.decision};
}

absl::Status RoutePlanner::CheckSlo(const RouteRequest& request, const Candidates& prefill,
                                    absl::Span<const Candidate> decode, const Pair& pair) const {
  const absl::Duration slo =
      request.ttft_slo > absl::ZeroDuration() ? request.ttft_slo : options_.ttft_slo;
  if (slo <= absl::ZeroDuration() || !request.may_refuse) return absl::OkStatus();
  const Candidate& computes = pair.computes();
  if (!computes.cost_known) return absl::OkStatus();
  double soonest = computes.wait_s() + computes.computing_s();
  for (int i = 0; i < prefill.size(); ++i) {
    soonest = std::min(soonest, prefill.wait_s(i) + prefill.computing_s(i));
  }
  if (prefill.empty()) {
    for (const Candidate& c : decode) soonest = std::min(soonest, c.wait_s() + c.computing_s());
  }
  const absl::Duration excess = absl::Seconds(soonest) - slo;
  if (excess <= absl::ZeroDuration()) return absl::OkStatus();
  // Jitter: clients refused together must not come back together.
  const double share = static_cast<double>(options_.random() >> 11) * 0x1p-53;
  return WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "TTFT_SLO_UNREACHABLE",
                                  absl::StrCat("the first token is expected in ",
                                               absl::ToInt64Milliseconds(absl::Seconds(soonest)),
                                               " ms at the soonest, but promised within ",
                                               absl::ToInt64Milliseconds(slo), " ms")),
                        std::clamp(excess * (1 + share), kShortestSloRetry, kLongestSloRetry));
}

// A worker that has been forgotten since the decision is counted for until FleetLoad drops the
// dispatch.
void RoutePlanner::CountDispatch(const RouteQuery& query, const Pair& pair, Route* route) {
  const absl::Duration now = clock_.SinceStart();
  const Candidate& computes = pair.computes();
  const int64_t tokens = std::max<int64_t>(
      query.prompt_tokens - int64_t{computes.matched_blocks} * query.block_tokens, 1);
  const int received = query.PagesBeside(pair.decode.matched_blocks);
  health_.OnChosen(computes.worker, pair.answers().worker);
  if (pair.prefill_alone()) {
    policy_.OnSent(*pair.prefill);
    route->dispatch = fleet_.OnDispatch(
        pair.prefill->worker, now,
        {tokens, pair.prefill->computing_s(), query.PagesBeside(pair.prefill->matched_blocks), 0});
    return;
  }
  if (!pair.prefill) {
    route->dispatch =
        fleet_.OnDispatch(pair.decode.worker, now,
                          {tokens, pair.decode.computing_s(), received, query.prompt_tokens});
    return;
  }
  policy_.OnSent(*pair.prefill);
  const int computed = query.PagesBeside(pair.prefill->matched_blocks);
  route->answer_dispatch = fleet_.OnDispatch(
      pair.decode.worker, now, {1, 0, received, query.prompt_tokens, /*receives=*/true});
  route->dispatch = fleet_.OnDispatch(pair.prefill->worker, now,
                                      {tokens, pair.prefill->computing_s(), computed, 0});
}

void RoutePlanner::OnFirstToken(const Route& route) {
  const absl::Duration now = clock_.SinceStart();
  absl::MutexLock lock(&mutex_);
  fleet_.OnComputed(route.computes.worker, route.dispatch, now);
  if (route.answer_dispatch != 0) {
    fleet_.OnComputed(route.answers.worker, route.answer_dispatch, now);
  }
}

void RoutePlanner::OnRouteEnded(const Route& route) {
  absl::MutexLock lock(&mutex_);
  EndDispatches(route);
}

// A worker reports what it runs at intervals, in which short answers begin and end. If ended
// answers counted until the next report, they would keep requests away from the worker that had
// fewer of them at its last report.
void RoutePlanner::EndDispatches(const Route& route) {
  const absl::Duration now = clock_.SinceStart();
  fleet_.OnDone(route.computes.worker, route.dispatch, now);
  if (route.answer_dispatch != 0) fleet_.OnDone(route.answers.worker, route.answer_dispatch, now);
}

void RoutePlanner::OnRouteFailed(const Route& route, Blame blame) {
  absl::MutexLock lock(&mutex_);
  EndDispatches(route);
  // Failures of an earlier process at the address do not count against this one.
  const auto current = [this](const WorkerTarget& target) {
    mutex_.AssertHeld();
    return workers_[target.worker].target.epoch == target.epoch;
  };
  if (!current(route.computes) || !current(route.answers)) return;
  if (blame == Blame::kPair) health_.OnPairFailed(route.computes.worker, route.answers.worker);
  if (blame == Blame::kAnswers) health_.OnWorkerFailed(route.answers.worker);
}

void RoutePlanner::OnRouteWorked(const Route& route, bool kv_moved) {
  absl::MutexLock lock(&mutex_);
  const WorkerTarget& sender = kv_moved ? route.computes : route.answers;
  health_.OnPairWorked(sender.worker, route.answers.worker);
}

}  // namespace baton::router
